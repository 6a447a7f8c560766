"""Settings that a framework's configuration says, where the environment does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

Source = Callable[[], Mapping[str, str]]
"""Returns texts as the environment would have them, by the names of settings: ``scan_interval``."""


class FrameworkSettings:
    """The one source of a process. It is asked at each load: a test may change the database."""

    def __init__(self) -> None:
        self._source: Source = dict

    def provide(self, source: Source) -> Source:
        """Ask ``source`` from now on, and return what was asked before."""
        before, self._source = self._source, source
        return before

    def read(self) -> Mapping[str, str]:
        return self._source()


FRAMEWORK_SETTINGS = FrameworkSettings()
"""Where a framework enters."""


class LayeredSettings(BaseSettings):
    """Arguments go before the environment, and that before a framework's configuration."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say so to pydantic."""
        framework = InitSettingsSource(settings_cls, init_kwargs=dict(FRAMEWORK_SETTINGS.read()))
        return (init_settings, env_settings, framework)

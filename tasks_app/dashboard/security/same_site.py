"""Is an unsafe request the user's own will, or sent by another site's page?

Both are asked: where the browser says it comes from, and a token that only our pages know, once in
a cookie and once in the form.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

COOKIE, FIELD = "tasks_app_token", "token"
SAFE = frozenset({"GET", "HEAD"})
FORM = "application/x-www-form-urlencoded"
_LENGTH = 43


def token_of(request: Request) -> str:
    """Return the token of this browser, a new one if it has none."""
    given = request.cookies.get(COOKIE, "")
    return given if len(given) == _LENGTH else secrets.token_urlsafe(32)


def remember(request: Request, response: Response, token: str) -> None:
    if request.cookies.get(COOKIE) != token:
        response.set_cookie(
            COOKIE,
            token,
            path=request.scope.get("root_path", "") or "/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )


async def refusal(request: Request) -> str:
    """Return why the request must not be carried out; empty: it may."""
    site = request.headers.get("sec-fetch-site")
    origin = urlsplit(request.headers.get("origin", "")).netloc
    if site != "same-origin" if site else not origin or origin != request.headers.get("host"):
        return "It comes from another site. Open the page here and try again."
    if request.headers.get("content-type", "").partition(";")[0].strip() != FORM:
        return "It is not a form of the dashboard. Open the page here and try again."
    form = await request.form()
    given, kept = str(form.get(FIELD, "")), request.cookies.get(COOKIE, "")
    if len(kept) != _LENGTH or not hmac.compare_digest(given.encode(), kept.encode()):
        return "Its token is not the one of this browser. Reload the page and try again."
    return ""

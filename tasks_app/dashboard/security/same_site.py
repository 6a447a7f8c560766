"""Is an unsafe request the user's own will, or sent by another site's page?

Of a page both are asked: where the browser says it comes from, and a token that only our pages
know, once in a cookie and once in the form. The API takes JSON only, which no other site's page can
send without asking us first.
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
JSON = "application/json"
_LENGTH = 43
API = "/api/"


def is_api(request: Request) -> bool:
    """Whether the address is of the JSON API."""
    root = request.scope.get("root_path", "")
    return str(request.scope["path"]).removeprefix(root).startswith(API)


def token_of(request: Request) -> str:
    """Return the token of this browser, a new one if it has none."""
    given = request.cookies.get(COOKIE, "")
    return given if len(given) == _LENGTH else secrets.token_urlsafe(32)


def remember(request: Request, response: Response, token: str) -> None:
    if request.cookies.get(COOKIE) != token:
        set_cookie(request, response, COOKIE, token)


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie for our pages alone, until the browser ends; empty: delete it."""
    response.set_cookie(
        name,
        value,
        max_age=None if value else 0,
        path=request.scope.get("root_path", "") or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


async def refusal(request: Request) -> str:
    """Return why the request must not be carried out; empty: it may."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if is_api(request):
        if _elsewhere(request, unsaid=False):
            return "It comes from another site's page, which may not use the API."
        return "" if kind == JSON else f"The API takes {JSON}. Send this content type."
    if _elsewhere(request, unsaid=True):
        return "It comes from another site. Open the page here and try again."
    if kind != FORM:
        return "It is not a form of the dashboard. Open the page here and try again."
    form = await request.form()
    given, kept = str(form.get(FIELD, "")), request.cookies.get(COOKIE, "")
    if len(kept) != _LENGTH or not hmac.compare_digest(given.encode(), kept.encode()):
        return "Its token is not the one of this browser. Reload the page and try again."
    return ""


def _elsewhere(request: Request, *, unsaid: bool) -> bool:
    """Whether another site's page sent it; ``unsaid``: what if no browser says so."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site:
        return site != "same-origin"
    if not origin:
        return unsaid
    try:
        return urlsplit(origin).netloc != request.headers.get("host")
    except ValueError:
        return True

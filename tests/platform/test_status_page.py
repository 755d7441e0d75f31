"""Tests the status page in a real browser.

The page must work with its content security policy, refresh itself, and show hostile names as text. Playwright controls
an installed Chromium. If Playwright or Chromium is missing, the tests are skipped.
"""

# ruff: noqa: ANN401 - Playwright may be missing, so its types are not known

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres
from tests.support.weather import Pipeline, configured, prepare, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

EVIL = "<img src=x onerror=document.title=1>"

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1000, "height": 1100}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pipeline(kafka: Kafka, postgres_server: Callable[..., Postgres]) -> Iterator[Pipeline]:
    """Provide a pipeline with a table that has a hostile name, no key, and too much data for a load without a key."""
    settings = configured({"snapshot": {"mode": "initial", "without_key_max": "1KiB"}})
    with postgres_server().database() as database:
        prepare(database)
        with database.connect() as admin:
            admin.execute(f'CREATE TABLE "{EVIL}" AS SELECT generate_series(1, 10000) AS n')
        with Daemon("shop", database.conninfo(), kafka.bootstrap_servers, settings) as daemon:
            found = Pipeline(database, kafka, daemon)
            found.write(30)
            found.wait_until_confirmed()
            wait_until(lambda: EVIL in str(daemon.status()["snapshot"]), "the hostile table to be left out")
            yield found


@pytest.fixture
def open_page(browser: Any, pipeline: Pipeline) -> Iterator[Callable[..., Any]]:
    """Provide a function that opens the page of the pipeline.

    The test fails if the browser reports a problem, or loads anything from another server.
    """
    complaints: list[str] = []
    with ExitStack() as stack:

        def begin(**options: Any) -> Any:
            context = browser.new_context(**options)
            stack.callback(context.close)
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: _note_foreign(complaints, request.url, pipeline.daemon.url))
            page.goto(pipeline.daemon.url)
            return page

        yield begin
    assert complaints == []


def _note_foreign(complaints: list[str], url: str, own: str) -> None:
    if not url.startswith(own):
        complaints.append(url)


def test_the_page_shows_the_pipeline_and_treats_names_as_text(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport=DESK)
    assert page.title() == "shop - pgsluice"
    assert "streaming" in page.inner_text("h1")
    page.get_by_role("cell", name="shop.public.numbers", exact=True).wait_for()
    text = page.inner_text("main")
    for part in (EVIL, "Lag", "confirmed_lsn", "raise snapshot.without_key_max"):
        assert part in text
    assert page.locator("svg path").count() == 2
    page.click("summary")
    assert "bootstrap_servers" in page.inner_text("pre")


def test_the_page_refreshes_itself_and_keeps_details_open(open_page: Callable[..., Any], pipeline: Pipeline) -> None:
    page = open_page(viewport=DESK)
    page.click("summary")
    row = page.get_by_role("row", name="shop.public.numbers")
    total = int(row.locator("td").last.inner_text())
    pipeline.write(7)
    row.get_by_text(str(total + 7), exact=True).wait_for()
    assert page.locator("details[open]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_light_and_dark(open_page: Callable[..., Any], scheme: str) -> None:
    page = open_page(viewport=PHONE, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    background = page.evaluate("getComputedStyle(document.documentElement).colorScheme")
    assert background == "light dark"


def test_the_page_shows_that_the_process_no_longer_answers(browser: Any, pipeline: Pipeline) -> None:
    page = browser.new_context(viewport=DESK).new_page()
    page.goto(pipeline.daemon.url)
    pipeline.daemon.stop()
    page.wait_for_selector(".lost .stale", state="visible")
    pipeline.daemon.start()
    page.wait_for_selector(".stale", state="hidden")
    page.context.close()

"""The tab in a real Chromium: what it says, that nothing is wrong with it, and that it fits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest
import pytest_asyncio

pytest.importorskip("uvicorn")
pytest.importorskip("aiohttp")

from tests.plugin.browser import Tab, chromium, open_browser
from tests.plugin.scenes import SCENES
from tests.waiting import eventually_async

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="there is no chromium on PATH"),
    pytest.mark.asyncio(loop_scope="module"),
]

WIDTHS = [1440, 390]

#: What must be read on each page.
SAYS = {
    "running": [
        "Running",
        "Training on 4 nodes, 32 ranks",
        "No action needed",
        "Timeline",
        "No incidents.",
        "Goodput",
    ],
    "recovered": [
        "Recovered",
        "recovered from 2 faults",
        "rank 11 (local rank 3) on node 1 (gpu-07)",
        "restart-workers",
        "training resumed after 9.4 s",
        "51 steps lost",
        "Use of time",
        "Steps per second",
        "loss",
        "gpu-11",
    ],
    "failed": [
        "Failed",
        "FloatingPointError: loss is not finite at step 1203",
        "Fix the script, then clear the task.",
        "Last lines of rank 27",
        "raise FloatingPointError",
        "rallypoint logs nightly-llm-3f9a2c1b --backend kubernetes --namespace training --rank 27",
    ],
    "roles": [
        "Running 3 roles, recovered from 3 faults",
        "Role trainer",
        "elastic, driver",
        "Training on 4 nodes, 32 ranks",
        "Role rollout",
        "simple, server",
        "6 instances running",
        "running, life 2",
        "Role judge",
        "rollout 3 was killed by SIGKILL",
        "rallypoint logs nightly-rl-3f9a2c1b --backend kubernetes --namespace training --role rollout --rank 3",
    ],
    "no-data": ["No data", "No training job here", "ElasticTrainingOperator"],
    "no-permission": ["No permission", "You have no permission to see this task's training", "Ask an Airflow administrator"],
}

#: Elements that reach out of the window, but for those inside of what scrolls by itself.
OUTSIDE = """
[...document.querySelectorAll("body *")]
  .filter((e) => !e.closest("pre, .hidden, title") && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map((e) => `${e.tagName}.${e.getAttribute("class")}: ${e.textContent.slice(0, 40)}`)
"""

#: Texts that are wider than the box that they are in, which cuts them.
CUT = """
[...document.querySelectorAll(".cell, .figure, dd, h1, h2, .badge, .chip, figcaption, button, summary")]
  .filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).display !== "inline")
  .map((e) => `${e.tagName}.${e.className}: ${e.textContent}`)
"""

#: What a screen reader would have no name for.
NAMELESS = """
[...document.querySelectorAll("button, a, svg, summary, section, [role=listitem], [role=img], [role=region]")]
  .filter((e) => !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim()))
  .map((e) => e.outerHTML.slice(0, 120))
"""

#: The least contrast of any text with what is behind it (WCAG's formula), with that text.

CONTRAST = """
(() => {
  const parts = (c) => (c.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (c) => parts(c).slice(0, 3).reduce((sum, v, i) => sum + linear(v / 255) * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if ((parts(color)[3] ?? 1) > 0.9) return color;
    }
    return "rgb(255,255,255)";
  };
  const worded = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && e.getClientRects().length;
  const labels = [...document.querySelectorAll("svg text.on")];
  const pairs = labels.map((e) => [e, getComputedStyle(e).fill, getComputedStyle(e.previousElementSibling).fill]);
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg, .hidden") || !worded(e)) continue;
    pairs.push([e, getComputedStyle(e).color, behind(e)]);
  }
  let least = [21, ""];
  for (const [e, front, back] of pairs) {
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < least[0]) least = [ratio, e.textContent.slice(0, 40)];
  }
  return least;
})()
"""


@dataclasses.dataclass(frozen=True)
class Shown:
    tab: Tab
    text: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(tmp_path_factory):
    """One tab of one browser."""
    program = chromium()
    assert program is not None
    async with open_browser(program, tmp_path_factory.mktemp("profile")) as browser:
        opened = await browser.tab()
        yield opened
        await opened.close()


def address(root: str, scene: str) -> str:
    return f"{root}/ti?dag_id={scene}&run_id=manual__2026-03-14&task_id=train&map_index=%7BMAP_INDEX%7D"


async def text_of(tab: Tab) -> str:
    return await tab.run("document.body.innerText")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scene", SCENES)
async def test_every_state_is_shown_whole(tab, root, scene, width, theme):
    """Its words are there, the console is empty, nothing is cut or reaches out of the window, everything has a name."""
    await tab.show(address(root, scene), width=width, theme=theme)
    text = await text_of(tab)

    assert [words for words in SAYS[scene] if words not in text] == []
    assert tab.errors == []
    assert len(tab.refused) == (1 if scene == "no-permission" else 0), tab.refused
    assert await tab.run("document.documentElement.scrollWidth") <= width
    assert await tab.run(OUTSIDE) == []
    assert await tab.run(CUT) == []
    assert await tab.run(NAMELESS) == []
    assert await tab.run("document.documentElement.dataset.theme") == theme
    ratio, where = await tab.run(CONTRAST)
    assert ratio >= 4.5, where


async def test_airflows_own_switch_of_the_theme_is_followed(tab, root):
    """What is chosen in Airflow wins over the system's wish, at once and while the page is open."""
    await tab.show(address(root, "running"), width=1440, theme="light", stored="dark")
    assert await tab.run("document.documentElement.dataset.theme") == "dark"

    await tab.run("localStorage.setItem('theme', 'light'); dispatchEvent(new StorageEvent('storage', {key: 'theme'}))")
    assert await tab.run("document.documentElement.dataset.theme") == "light"
    await tab.run("localStorage.clear()")


async def test_the_culprits_lines_come_when_they_are_asked_for(tab, root):
    """A press on the button brings the last lines of that rank."""
    await tab.show(address(root, "failed"), width=1440)
    await tab.run("document.querySelector('#logs button').click()")

    await eventually_async(lambda: tab.run("document.querySelector('#logs pre')?.innerText.includes('step 39 of rank 27')"))
    assert tab.errors == []


async def test_an_incident_is_reached_from_the_timeline_by_keyboard(tab, root):
    """Its mark is a link that can be focused, and it leads to the incident."""
    await tab.show(address(root, "recovered"), width=1440)
    await tab.run("document.querySelector('#timeline a').focus()")
    await tab.press("Enter")

    assert await eventually_async(lambda: tab.run("location.hash === '#fault-1'"))


async def test_what_is_open_stays_open_while_news_come(tab, root):
    """A part whose values are the same is not drawn anew by the next answer."""
    await tab.show(address(root, "recovered"), width=1440)
    await tab.run("document.querySelector('#fault-1').open = true; document.querySelector('#fault-1').dataset.mine = 'yes'")
    asked = await tab.run("performance.getEntriesByType('resource').filter((e) => e.name.includes('/job?')).length")
    await eventually_async(
        lambda: tab.run(
            f"performance.getEntriesByType('resource').filter((e) => e.name.includes('/job?')).length > {asked} + 1"
        ),
        why="the page asks again while the job is live",
    )

    assert await tab.run("document.querySelector('#fault-1').open && document.querySelector('#fault-1').dataset.mine") == "yes"
    assert tab.errors == []


async def test_text_of_others_is_never_markup(tab, root):
    """What a script wrote is shown as it is: the page has no other elements than its own."""
    await tab.show(address(root, "failed"), width=1440)

    assert await tab.run("document.querySelectorAll('main script, main iframe, main img').length") == 0
    with contextlib.suppress(asyncio.CancelledError):
        assert "<module>" in await text_of(tab)

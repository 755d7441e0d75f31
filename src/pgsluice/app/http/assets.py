"""The script and the style of the status page. The page's Content-Security-Policy has their hashes.

``tests/unit/app/http/test_page.py`` covers this module.
"""

from typing import Final

SCRIPT: Final = """
"use strict";
setInterval(async () => {
  if (document.hidden) return;
  const main = document.querySelector("main");
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) throw answer.status;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    for (const one of main.querySelectorAll("details[open]")) {
      const same = next.querySelector("#" + one.id);
      if (same) same.open = true;
    }
    main.replaceWith(next);
  } catch {
    main.classList.add("lost");
  }
}, 5000);
"""

STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; --line: #2a6fdb; --faint: #8884 }
@media (prefers-color-scheme: dark) { :root { --line: #7fb2ff } }
body { margin: 1.5rem auto; max-width: 64rem; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 0 .5rem } h1 small { font-size: .9rem; font-weight: 400; opacity: .7 }
h2 { font-size: 1rem; margin: 0 0 .3rem }
section { border-top: 1px solid var(--faint); margin-top: 1rem; padding-top: .8rem }
.state { border: 1px solid; border-radius: 1rem; font-size: .9rem; font-weight: 500; padding: .1rem .7rem }
.wide { overflow-x: auto }
table { border-collapse: collapse }
th, td { padding: .15rem 1.2rem .15rem 0; text-align: left; vertical-align: top }
th { font-weight: 500; opacity: .7; white-space: nowrap }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; min-width: 5rem }
p { margin: .2rem 0 } pre { overflow-x: auto }
svg { background: var(--faint); display: block; height: 6rem; width: 100% }
svg path { fill: none; stroke: var(--line); stroke-width: 1.5; vector-effect: non-scaling-stroke }
.scale { display: flex; justify-content: space-between; opacity: .7 }
.yes { color: #2a8a3e } .no { color: #c0392b }
@media (prefers-color-scheme: dark) { .yes { color: #6fcf83 } .no { color: #ff8a7a } }
.stale { display: none } .lost .stale { color: #c0392b; display: block; font-weight: 500 }
"""

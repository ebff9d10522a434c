"""The style of a report's page: light or dark as its reader has it, and readable on a narrow screen."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2024; --faint: #5c6570; --line: #d5dae0; --panel: #f5f7f9;
  --good: #1a7f4b; --bad: #c22f2f; --warn: #a15c00; --calm: #2a62b8; --idle: #7a8490; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e5e9ee; --faint: #98a2ae; --line: #343c46;
  --panel: #1d232a; --good: #4cc285; --bad: #f07070; --warn: #e0a04a; --calm: #76a8f5; --idle: #8a94a0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1100px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3, caption { font-size: .95rem; font-weight: 600; text-align: left; padding: .5rem 0; }
p { margin: .4rem 0; } blockquote { margin: .5rem 0; padding: .3rem .9rem; border-left: 3px solid var(--line);
  white-space: pre-wrap; }
code, pre { font: .87em/1.5 ui-monospace, monospace; }
pre { background: var(--panel); padding: .8rem; overflow-x: auto; border-radius: 6px; overflow-wrap: normal; }
.scroll { overflow-x: auto; margin: .5rem 0; overflow-wrap: normal; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); }
td > bdi, td > code { display: block; width: max-content; overflow-wrap: anywhere; white-space: normal; }
td > bdi { max-width: 20rem; } td > code { max-width: 44ch; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .6rem 1rem; margin: .5rem 0; }
dt { color: var(--faint); font-size: .85rem; } dd { margin: 0; }
svg { display: block; max-width: none; } svg text { fill: var(--text); font: 13px system-ui, sans-serif; }
svg .small { fill: var(--faint); font-size: 11px; }
.node rect { fill: var(--panel); stroke: var(--line); } .node rect.fill { stroke: none; }
.edge { fill: none; stroke: var(--idle); stroke-width: 1.3; } .grid { stroke: var(--line); }
.e-failed, .e-blocked, .e-cancelled { stroke: var(--bad); stroke-dasharray: 4 3; }
.state { font-weight: 600; color: var(--idle); }
.bar, .node .fill { fill: var(--idle); }
.state.s-landed, .state.s-done { color: var(--good); }
.bar.s-landed, .bar.s-done, .s-landed .fill, .s-done .fill { fill: var(--good); }
.state.s-failed, .state.s-died { color: var(--bad); }
.bar.s-failed, .s-failed .fill { fill: var(--bad); } .bar.s-died { fill: var(--warn); }
.state.s-blocked, .state.s-stopped, .state.s-undone { color: var(--warn); }
.s-blocked .fill, .s-stopped .fill { fill: var(--warn); }
.state.s-running { color: var(--calm); } .bar.s-running, .bar.s-used, .s-running .fill { fill: var(--calm); }
"""

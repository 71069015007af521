"""What every HTML report holds: its looks, and the script that draws its charts."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --back: #ffffff; --line: #d9dce0;
        --soft: #59636e; --box: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8eb; --back: #15181c; --line: #3a3f47; --soft: #a6adb7; --box: #1e2228; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 8px; }
.about, .note, small { color: var(--soft); }
.about { margin: 2px 0 18px; }
.note { font-size: 13px; margin: 4px 0; }
.verdict { background: var(--box); border: 1px solid var(--line); border-radius: 8px;
           padding: 14px 18px; overflow-wrap: anywhere; }
.verdict p { margin: 6px 0; }
.headline { font-size: 19px; font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
           margin: 18px 0 0; }
.figures div { border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px;
               min-width: 0; }
dt { color: var(--soft); font-size: 13px; } dd { margin: 0; font-size: 22px; font-weight: 600; }
small { display: block; font-size: 12px; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
.chart, table { min-width: 680px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line);
         vertical-align: top; overflow-wrap: break-word; max-width: 60em; }
td:first-child { white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
@media print { main { max-width: none; } }
"""

SCRIPT = """
"use strict";
(function () {
  var charts = JSON.parse(document.getElementById("charts").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  function draw() {
    Object.keys(charts).forEach(function (name) {
      var place = document.getElementById(name);
      var figure = JSON.parse(JSON.stringify(charts[name][dark.matches ? "dark" : "light"]));
      if (place) {
        Plotly.react(place, figure.data, figure.layout, {
          responsive: true, displaylogo: false, displayModeBar: false, showLink: false
        });
      }
    });
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  }
  dark.addEventListener("change", draw);
  draw();
})();
"""

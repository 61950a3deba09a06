//! The page's style sheet: light and dark, without external fonts or pictures.

pub(super) const SHEET: &str = "
:root{--ink:#1a1d21;--muted:#5b6470;--line:#d8dde3;--paper:#fff;--card:#f6f8fa;--go:#0b6e4f;--stop:#b3261e;--wait:#8a5a00;--blue:#1f5fbf}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--muted:#9aa4b0;--line:#343b44;--paper:#14171b;--card:#1c2127;--go:#5fd3a8;--stop:#ff8a80;--wait:#f0c060;--blue:#7fb2ff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.2rem;font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
h1{font-size:1.35rem;margin:0}h2{font-size:1rem;margin:1.4rem 0 .5rem}h3{font-size:1rem;margin:0}
header{display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap}header p{margin:0}
.muted{color:var(--muted);font-weight:400}.narrow{max-width:34rem}
.alarm{border:2px solid var(--stop);padding:.6rem .8rem;border-radius:.4rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line)}
.number{text-align:right;font-variant-numeric:tabular-nums}
.node{display:flex;gap:1rem;align-items:center;padding:.25rem 0;flex-wrap:wrap}
.slots{display:flex;gap:.3rem;flex-wrap:wrap}
.slot{border:1px solid var(--line);border-radius:.3rem;padding:.05rem .5rem;color:var(--muted);min-width:3.6rem;text-align:center}
.slot.held{border-color:var(--blue)}a{color:var(--blue);text-decoration:none}a:hover{text-decoration:underline}
article{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.8rem 1rem;margin:0 0 .8rem}
.head{display:flex;justify-content:space-between;gap:1rem}.because{margin:.15rem 0 .5rem}
.body{display:flex;gap:1.5rem;flex-wrap:wrap;justify-content:space-between}
dl{display:grid;grid-template-columns:max-content auto;gap:.1rem 1rem;margin:0}dt{color:var(--muted)}dd{margin:0;font-variant-numeric:tabular-nums}
figure{margin:0;width:22.5rem;max-width:100%}svg{width:100%;height:auto;border-left:1px solid var(--line);border-bottom:1px solid var(--line)}
polyline{fill:none;stroke-width:1.6;stroke:var(--blue)}.attempt2{stroke:var(--go)}.attempt3{stroke:var(--wait)}.attempt0{stroke:var(--stop)}
figcaption{font-size:.8rem}progress{width:100%;height:.5rem;margin-top:.6rem;accent-color:var(--blue)}
.state{white-space:nowrap}.running,.succeeded{color:var(--go)}.failed{color:var(--stop)}.waiting,.starting,.stopping{color:var(--wait)}
pre,code{font-family:ui-monospace,monospace;font-size:.9em}pre{background:var(--card);padding:.6rem;border-radius:.4rem;overflow-x:auto}
footer{margin-top:1.5rem;font-size:.85rem}
";

//! Pages in a browser: on a desk, on a phone, on a dark screen, on paper. Wants Chromium.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Widths of a window, CSS pixels: a phone, a tablet, a desk.
const WIDTHS: [u32; 3] = [390, 820, 1280];
/// Least height of a line of text in a drawing, CSS pixels, where it is not to be moved within its frame.
const LEAST_TEXT: f64 = 8.5;

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut all = std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    all.find(|program| program.is_file())
}

/// What Chromium prints, which is given a minute.
fn chromium(program: &Path, folder: &Path, args: &[&str]) -> String {
    let out = folder.join("stdout");
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    let mut child = Command::new(program)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"])
        .args([&profile, "--virtual-time-budget=10000"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if since.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("Chromium did not end: {args:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::read_to_string(out).unwrap()
}

/// Measures a page in frames of each width.
const MEASURE: &str = r#"<!DOCTYPE html><meta charset="utf-8"><body><script>
function measure(frame, width) {
  const page = frame.contentDocument, root = page.documentElement, style = frame.contentWindow.getComputedStyle;
  const shown = [...page.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width > 0);
  const fits = shown.filter(svg => svg.getBoundingClientRect().width <= width);
  const heights = fits.flatMap(svg => [...svg.querySelectorAll('text')].filter(text => text.textContent.trim())
    .map(text => text.getBoundingClientRect().height));
  const cut = shown.filter(svg => svg.matches('.plot')).flatMap(svg => [...svg.querySelectorAll('text')].filter(text => {
    const a = text.getBoundingClientRect(), b = svg.getBoundingClientRect();
    return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
  }).map(text => text.textContent.trim()));
  const crossed = shown.filter(svg => svg.matches('.plot')).flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')].filter(text => text.textContent.trim())
      .map(text => [text.textContent.trim(), text.getBoundingClientRect()]);
    return texts.flatMap(([name, a], nth) => texts.slice(nth + 1).filter(([, b]) =>
      a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
      .map(([other]) => name + ' and ' + other));
  });
  const body = style.call(frame.contentWindow, page.body);
  return { width, scroll: root.scrollWidth, plots: shown.filter(svg => svg.matches('.plot')).length,
    figures: page.querySelectorAll('figure').length, text: Math.min(...heights, 99), cut, crossed,
    ink: body.color, ground: body.backgroundColor,
    outside: frame.contentWindow.performance.getEntriesByType('resource').length };
}
const found = [], widths = WIDTHS;
for (const width of widths) {
  const frame = document.createElement('iframe');
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.onload = () => {
    found.push(measure(frame, width));
    if (found.length == widths.length) document.body.innerHTML = '<pre>' + JSON.stringify(found) + '</pre>';
  };
  frame.src = 'PAGE';
  document.body.append(frame);
}
</script></body>"#;

fn measured(program: &Path, folder: &Path, page: &Path, args: &[&str]) -> Vec<Value> {
    let script = MEASURE
        .replace("WIDTHS", &format!("{WIDTHS:?}"))
        .replace("PAGE", &format!("file://{}", page.display()));
    let wrapper = folder.join("measure.html");
    fs::write(&wrapper, script).unwrap();
    let url = format!("file://{}", wrapper.display());
    let dom = chromium(program, folder, &[args, &["--dump-dom", &url]].concat());
    let json = dom.split("<pre>").nth(1).and_then(|rest| rest.split("</pre>").next());
    serde_json::from_str(json.unwrap_or_else(|| panic!("nothing was measured: {dom}"))).unwrap()
}

/// What is wrong with a page, as it was measured.
fn faults(name: &str, found: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    for at in found {
        let number = |field: &str| at[field].as_f64().unwrap();
        let width = number("width");
        if number("scroll") > width {
            faults.push(format!("{name}: {} px at {width}: it scrolls sideways", number("scroll")));
        }
        if number("text") < LEAST_TEXT {
            faults.push(format!("{name}: text of {} px at {width}", number("text")));
        }
        if at["cut"].as_array().is_some_and(|cut| !cut.is_empty()) {
            faults.push(format!("{name}: cut off at {width}: {}", at["cut"]));
        }
        if at["crossed"].as_array().is_some_and(|crossed| !crossed.is_empty()) {
            faults.push(format!("{name}: one over the other at {width}: {}", at["crossed"]));
        }
        if number("outside") > 0.0 {
            faults.push(format!("{name}: it loads {} things", number("outside")));
        }
    }
    faults
}

/// How far two colours `rgb(r, g, b)` are apart: the contrast of WCAG 2.
fn contrast(a: &str, b: &str) -> f64 {
    let luminance = |colour: &str| {
        let numbers = colour.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        let linear = numbers.take(3).map(|n| {
            let share = n.parse::<f64>().unwrap() / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        });
        linear.zip([0.2126, 0.7152, 0.0722]).map(|(value, weight)| value * weight).sum::<f64>()
    };
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

fn bellpush(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_bellpush")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Results whose rows have no message size.
const LINKS: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/link-h200.json"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/link-h100.json"),
];

/// A result whose times are others, each row's by another factor.
fn scaled(from: &str, to: &Path) -> String {
    let mut json: Value = serde_json::from_slice(&fs::read(from).unwrap()).unwrap();
    for (nth, row) in json["results"].as_array_mut().unwrap().iter_mut().enumerate() {
        let ns = row["latency_ns_p50"].as_f64();
        row["latency_ns_p50"] = ns.map(|ns| ns * (1.0 + (nth % 7) as f64 / 10.0)).into();
    }
    fs::write(to, json.to_string()).unwrap();
    to.display().to_string()
}

/// A page with what `compare --svg` draws, to be moved within its frame where that is narrow.
fn drawing(folder: &Path, before: &str, after: &str) -> PathBuf {
    let svg = folder.join("compared.svg");
    bellpush(&["compare", before, after, "--svg", &svg.display().to_string()]);
    let stem = Path::new(before).file_stem().unwrap().to_string_lossy();
    let page = folder.join(format!("compared-{stem}.html"));
    let drawn = fs::read_to_string(svg).unwrap();
    let html = format!("<body style='margin:0'><div style='overflow-x:auto'>{drawn}</div></body>");
    fs::write(&page, html).unwrap();
    page
}

#[test]
fn colours_are_apart_by_wcag() {
    assert!((contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") - 21.0).abs() < 1e-9);
    assert!((contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)") - 4.48).abs() < 0.01);
}

#[test]
#[ignore = "wants Chromium, and draws every page eight times"]
fn pages_fit_desks_phones_dark_screens_and_paper() {
    let Some(program) = browser() else { return println!("SKIPPED: no Chromium") };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| at(name).display().to_string();
    let saved = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/h200.json");
    bellpush(&["show", saved, "--report", &text("once")]);
    // As a second run of it: the same result twice is no repetition.
    let again =
        fs::read_to_string(saved).unwrap().replace("\"messages\": 4000", "\"messages\": 4001");
    fs::write(at("again.json"), again).unwrap();
    bellpush(&["show", saved, &text("again.json"), "--report", &text("repeated")]);
    bellpush(&["sim", "--report", &text("sim.html")]);
    bellpush(&["topo", "dgx-h100", "--load", "all-reduce", "--html", &text("topo.html")]);
    bellpush(&["topo", "epyc-2s", "--html", &text("bare.html")]);

    let drawings = [
        ("compared", saved, scaled(saved, &at("scaled.json"))),
        ("compared links", LINKS[0], LINKS[1].to_owned()),
    ]
    .map(|(name, before, after)| (name, drawing(folder.path(), before, &after)));

    // A control: what does not fit is found.
    let wide = "<body style='margin:0'><div style='width:1000px'>.</div>\
                <svg class='plot' width='300' height='50'><text x='280' y='20' font-size='6'>too long</text>\
                <text x='20' y='20'>one</text><text x='30' y='22'>other</text></svg>";
    fs::write(at("wide.html"), wide).unwrap();
    let wrong = faults("wide", &measured(&program, folder.path(), &at("wide.html"), &[]));
    for what in [
        "1000 px at 390: it scrolls",
        "1000 px at 820",
        "text of ",
        "cut off at 1280",
        "one and other",
    ] {
        assert!(wrong.iter().any(|fault| fault.contains(what)), "{what}: {wrong:#?}");
    }

    let mut wrong = Vec::new();
    for (name, page) in [
        ("report", at("once/index.html")),
        ("report of repeated rows", at("repeated/index.html")),
        ("model", at("sim.html")),
        ("topology and load", at("topo.html")),
        ("topology", at("bare.html")),
    ] {
        let light =
            measured(&program, folder.path(), &page, &["--blink-settings=preferredColorScheme=1"]);
        let dark =
            measured(&program, folder.path(), &page, &["--blink-settings=preferredColorScheme=0"]);
        wrong.extend(faults(name, &light));
        wrong.extend(faults(&format!("{name}, dark"), &dark));
        let colour = |found: &[Value], field: &str| found[0][field].as_str().unwrap().to_owned();
        for found in [&light, &dark] {
            let contrast = contrast(&colour(found, "ink"), &colour(found, "ground"));
            assert!(contrast > 7.0, "{name}: contrast {contrast}");
        }
        assert_ne!(colour(&light, "ground"), colour(&dark, "ground"), "{name}");
        // Of a plot's two forms one is shown.
        let plots: Vec<_> = light.iter().map(|at| at["plots"].as_u64().unwrap()).collect();
        assert!(
            plots.iter().all(|&n| n == plots[0] && n <= light[0]["figures"].as_u64().unwrap()),
            "{plots:?}"
        );

        let pdf = text("page.pdf");
        let url = format!("file://{}", page.display());
        chromium(
            &program,
            folder.path(),
            &["--no-pdf-header-footer", &format!("--print-to-pdf={pdf}"), &url],
        );
        let pdf = fs::read(&pdf).unwrap();
        assert!(pdf.starts_with(b"%PDF") && pdf.len() > 10_000, "{name}: {} bytes", pdf.len());
    }
    for (name, page) in &drawings {
        let found = measured(&program, folder.path(), page, &[]);
        assert!(found.iter().all(|at| at["plots"] == 1), "{name}: {found:?}");
        wrong.extend(faults(name, &found));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

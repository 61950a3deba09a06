//! The page, in a real browser: Debian's Chromium, without a screen.

use std::process::Command;

use crate::fixtures::product::Product;

const BROWSER: &str = "/usr/bin/chromium";

/// The page's document after the browser has read it.
fn browse(url: &str, folder: &std::path::Path) -> String {
    let output = Command::new(BROWSER)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"])
        .args(["--window-size=1200,900", "--virtual-time-budget=1000"])
        .arg(format!("--user-data-dir={}", folder.display()))
        .arg(url)
        .output()
        .expect("the browser runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Proves A-11 as far as a page can: what it shows is what the API gives.
#[test]
fn the_page_shows_jobs_slots_and_curves_in_a_browser() {
    if !std::path::Path::new(BROWSER).exists() {
        println!("skipped: {BROWSER} is not installed (cargo xtask ci installs it)");
        return;
    }
    let product = Product::up(&["a=cpu:1"]);
    let endpoint = product.url();
    let profile = product.path("profile");
    let refused = browse(&endpoint, &profile);
    assert!(refused.contains("gangline token link"), "{refused}");

    let ckpt = product.path("ckpt").to_str().expect("text").to_owned();
    let done = product.submit(&super::training("--steps 60", 1, &ckpt));
    product.wait_state(&done, "succeeded");
    let holds = product.submit("name: holds\nrun: exec sleep 60\n");
    let waits = product.submit("name: waits\nrun: exec sleep 60\n");
    product.wait_state(&holds, "running");

    let link = product.run(&["token", "link"]).stdout;
    assert!(link.starts_with(&endpoint), "{link}");
    let page = browse(link.trim(), &profile);
    for part in [done.as_str(), holds.as_str(), waits.as_str(), "<polyline", "60 of 60", "held by job-2", "succeeded"] {
        assert!(page.contains(part), "{part:?} is not on the page: {page}");
    }
    assert!(!page.contains("<script") && !page.contains("src="), "nothing is loaded: {page}");
}

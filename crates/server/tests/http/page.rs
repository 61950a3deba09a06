//! The page.

use crate::metrics::{post, report};
use crate::plane::{Plane, sample};

pub(crate) fn page(plane: &Plane) -> String {
    let cookie = plane.cookie();
    let answer = plane.send("GET", "/", &[("cookie", &cookie)], b"");
    assert_eq!(answer.status, 200, "{answer:?}");
    let policy = answer.header("content-security-policy").expect("a policy");
    assert!(policy.contains("default-src 'none'"), "{policy}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    answer.text
}

#[test]
fn the_link_becomes_a_cookie_that_is_not_the_token() {
    let plane = Plane::start();
    let link = plane.app.visits.link().expect("there is randomness");
    let answer = plane.send("GET", &link, &[], b"");
    assert_eq!((answer.status, answer.header("location")), (303, Some("/")));
    let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains(&plane.secrets.user_token()), "a cookie goes to every port of this machine");
    let sent = cookie.split(';').next().expect("a name and a value");
    assert_eq!(plane.send("GET", "/", &[("cookie", sent)], b"").status, 200);
    assert_eq!(plane.send("GET", &link, &[], b"").status, 401, "a link is good once");
}

#[test]
fn without_a_token_there_is_a_page_that_says_how_to_get_in() {
    let plane = Plane::start();
    let secret = plane.submit("secret", 1);
    let with_token = format!("/?token={}", plane.secrets.user_token());
    for path in ["/", "/?code=", "/?code=wrong", "/?token=", "/?token=wrong", &with_token] {
        let answer = plane.send("GET", path, &[], b"");
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.text.contains("gangline token link") && !answer.text.contains(&secret), "{answer:?}");
    }
    assert_eq!(plane.send("GET", "/?code=a&code=b", &[], b"").refusal(), (400, "G0306".to_owned()));
    assert_eq!(plane.send("GET", "/?user=a", &[], b"").refusal(), (400, "G0306".to_owned()));
}

/// Proves A-11 for what a person looks at most: jobs, their state and curve, slots and who holds them.
#[test]
fn the_page_shows_what_the_api_gives() {
    let plane = Plane::start();
    assert!(page(&plane).contains("gangline submit"), "an empty page says what to do next");
    let first = plane.submit("first", 2);
    let second = plane.submit("second", 1);
    let spec = plane.launched();
    plane.store(&spec, &[sample(1), sample(7)]);
    assert_eq!(post(&plane, &spec.token, &spec, &report(&spec, 0, 0, 8)).status, 200);
    let page = page(&plane);
    for expected in [
        "<polyline",
        "7 of 10",
        "<dt>lr</dt><dd>3.0000e-11</dd>",
        "1 live".replace('1', "2").as_str(),
        "2 of 2 slot(s) held",
        &format!("href=\"#{first}\""),
        &format!("id=\"{second}\""),
        plane.job(&second).because.as_str(),
        "running",
        "waiting",
    ] {
        assert!(page.contains(expected), "{expected:?} is missing: {page}");
    }
    for from_elsewhere in ["<script", "<link", "src=", "http://", "https://"] {
        assert!(!page.contains(from_elsewhere), "{from_elsewhere} on the page");
    }
}

#[test]
fn what_users_write_is_shown_as_text() {
    let plane = Plane::start();
    let hostile = "<script>alert(1)</script>";
    let file = format!("name: \"{hostile}\"\nresources: {{accelerators: \"cpu:1\"}}\nrun: \"echo '{hostile}'\"\n");
    let taken = plane.submit_text(&file, false);
    let page = page(&plane);
    assert!(!page.contains("<script"), "{page}");
    assert_eq!(taken.status == 200, page.contains("&lt;script&gt;"), "{taken:?}");
}

#[test]
fn a_loss_that_only_the_last_stage_reports_is_drawn_without_what_is_no_number() {
    let plane = Plane::start();
    plane.submit("pipeline", 1);
    let spec = plane.launched();
    plane.store(&spec, &[sample(1)]);
    assert_eq!(post(&plane, &spec.token, &spec, &report(&spec, 1, 0, 8)).status, 200);
    let page = page(&plane);
    assert!(page.contains("loss from 0.000 at step 0 to 7.000 at step 7") && !page.contains("NaN"), "{page}");
    let line = page.split_once("<polyline").expect("a line").1.split_once('>').expect("its end").0;
    assert_eq!(line.matches(',').count(), 7, "eight steps, of which one has no finite loss: {line}");
}

//! What a user can get wrong, and what is said then.

use crate::fixtures::product::Product;

#[test]
fn a_bad_job_file_is_refused_with_its_places() {
    let product = Product::up(&["a=cpu:2"]);
    let check = |text: &str, expected: &[&str]| {
        let file = product.job_file("bad.yaml", text);
        let ran = product.run(&["submit", &file]);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        for part in expected {
            assert!(ran.stderr.contains(part), "{part:?} is not in {}", ran.stderr);
        }
    };
    check("run: x\nnum_node: 2\n", &["bad.yaml:2:1", "G0103", "num_nodes"]);
    check("run: x\nnum_nodes: -1\n", &["bad.yaml:2:12", "G0108"]);
    check("run: x\ntime_limit: 5 parsecs\n", &["bad.yaml:2:", "G0107"]);
    check("run: x\nworkdir: /no/such/folder\n", &["bad.yaml:2:", "G0109", "/no/such/folder"]);
    check("run: x\nspares: 1025\n", &["bad.yaml:2:", "G0108", "over the limit of 1024"]);
    check("name: x\n", &["G0105", "run"]);
    check("run: [\n", &["G0101"]);
    assert_eq!(product.json(&["ps", "--all"])["jobs"].as_array().map(Vec::len), Some(0), "nothing was taken");
}

#[test]
fn a_job_that_can_never_fit_is_refused_with_what_would() {
    let product = Product::up(&["a=cpu:2"]);
    let check = |resources: &str, part: &str| {
        let file = product.job_file("large.yaml", &format!("run: x\n{resources}\n"));
        let ran = product.run(&["submit", &file]);
        assert_eq!(ran.code, 4, "{}", ran.stderr);
        assert!(ran.stderr.contains("G0401") && ran.stderr.contains(part), "{part:?} is not in {}", ran.stderr);
    };
    check("resources: {accelerators: \"H100:8\"}", "accelerators here: cpu");
    check("resources: {accelerators: \"cpu:3\"}", "at most cpu:2");
    check("num_nodes: 2\nresources: {accelerators: \"cpu:1\"}", "at most num_nodes: 1");
}

#[test]
fn unknown_things_have_their_own_exit_codes() {
    let product = Product::up(&["a=cpu:1"]);
    let check = |arguments: &[&str], code: i32, part: &str| {
        let ran = product.run(arguments);
        assert_eq!(ran.code, code, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{arguments:?}: {part:?} is not in {}", ran.stderr);
    };
    check(&["show", "job-9"], 3, "G0302");
    check(&["show", "nonsense"], 3, "G0302");
    check(&["show", "../../etc"], 3, "G0302");
    check(&["explain", "9"], 3, "G0302");
    check(&["logs", "9"], 3, "G0302");
    check(&["cancel", "9"], 3, "G0302");
    check(&["drain", "nowhere"], 3, "G0304");
    check(&["frobnicate"], 2, "frobnicate");
    check(&["submit"], 2, "FILE");
    check(&["submit", "/no/such/file.yaml"], 1, "/no/such/file.yaml");
    check(&["ps", "--url", "http://127.0.0.1:1"], 5, "G0501");
    check(&["ps", "--url", "http://head.example:1"], 5, "G0511");
    check(&["ps", "--token", "wrong"], 1, "G0512");
    let wrong = product.job_file("wrong-token", "wrong");
    check(&["ps", "--token-file", &wrong], 4, "G0301");
    check(&["ps", "--token-file", "/no/such/token"], 1, "/no/such/token");
    let as_json = product.run(&["show", "job-9", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&as_json.stderr).expect("the error is JSON");
    assert_eq!(error["error"]["code"], "G0302");
}

#[test]
fn a_second_control_plane_on_one_folder_is_refused() {
    let mut product = Product::up(&["a=cpu:1"]);
    let second = product.start_refused();
    assert_eq!(second.code, 1, "{}", second.stderr);
    assert!(second.stderr.contains("G0201"), "{}", second.stderr);
    assert_eq!(product.run(&["ps"]).code, 0, "the first one is unharmed");
    product.kill_control_plane();
    product.start();
}

#[test]
fn a_bad_configuration_is_refused() {
    let check = |options: &[&str], part: &str| {
        let mut product = Product::down(&[]);
        for pair in options.chunks(2) {
            product.option(pair[0], pair[1]);
        }
        let ran = product.start_refused();
        assert_eq!(ran.code, 1, "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{options:?}: {part:?} is not in {}", ran.stderr);
    };
    check(&["--node", "a=cpu"], "KIND:COUNT");
    check(&["--node", "a/b=cpu:1"], "a/b");
    check(&["--node", "a=cpu:1", "--node", "a=cpu:2"], "two nodes");
    check(&["--config", "/no/such/file.toml"], "/no/such/file.toml");
}

#[test]
fn bad_and_missing_tokens_get_401_and_large_bodies_413() {
    let product = Product::up(&["a=cpu:1"]);
    let endpoint = product.url();
    let url = format!("{endpoint}/api/v1/jobs");
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let text = |mut answer: ureq::http::Response<ureq::Body>| {
        (answer.status().as_u16(), answer.body_mut().read_to_string().expect("text"))
    };
    let none = text(agent.get(&url).call().expect("an answer"));
    let wrong = text(agent.get(&url).header("authorization", "Bearer nonsense").call().expect("an answer"));
    for (status, body) in [none, wrong] {
        assert_eq!(status, 401);
        assert!(body.contains("G0301") && !body.contains("panicked") && !body.contains(".rs:"), "{body}");
    }
    let token = std::fs::read_to_string(product.data().join("token")).expect("a token");
    // Barely over: the last bytes tell, so the answer can't overtake a body that is still being sent.
    let large = serde_json::json!({ "job_file": "x".repeat(1 << 20), "directory": "/" });
    let request = agent.post(&url).header("authorization", format!("Bearer {token}"));
    let (status, body) = text(request.send_json(&large).expect("an answer"));
    assert_eq!(status, 413, "{body}");
    assert!(body.contains("G0305"), "{body}");
}

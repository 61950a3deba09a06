//! The OpenAPI document: checked in, complete, and true.

use gangline_base::Bytes;
use gangline_store::db;
use serde_json::{Value, json};

use crate::plane::{Answer, Plane};

/// Where it is checked in.
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

fn document() -> Value {
    serde_json::to_value(gangline_server::openapi_document()).expect("it is JSON")
}

#[test]
fn the_document_that_is_checked_in_is_the_programs_own() {
    let own = serde_json::to_string_pretty(&document()).expect("it is JSON") + "\n";
    if std::env::var_os("GANGLINE_BLESS").is_some() {
        std::fs::write(PATH, &own).expect("docs/ is writable");
    }
    let checked_in = std::fs::read_to_string(PATH).unwrap_or_default();
    assert!(
        checked_in == own,
        "docs/openapi.json is out of date: run this test with GANGLINE_BLESS=1 and look at the change"
    );
    let plane = Plane::start();
    let served = plane.send("GET", "/api/v1/openapi.json", &[], b"");
    assert_eq!(served.json(), document());
}

/// Every operation has a summary, a bearer where it needs one, and only known schemas.
#[test]
fn the_document_is_complete() {
    let document = document();
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    assert_eq!(document["security"][0]["bearer"], serde_json::json!([]));
    for (path, item) in document["paths"].as_object().expect("an object") {
        for (method, operation) in item.as_object().expect("an object") {
            let name = format!("{method} {path}");
            assert!(operation["summary"].is_string(), "{name} has no summary");
            let is_open = operation["security"] == serde_json::json!([{}]);
            assert_eq!(is_open, path == "/api/v1/health", "{name}");
            let responses = operation["responses"].as_object().expect("an object");
            assert!(responses.contains_key("200"), "{name}");
            assert!(is_open || responses.contains_key("401"), "{name} doesn't say that it needs a token");
            for (status, response) in responses {
                let has_schema = response["content"]["application/json"]["schema"].is_object();
                let description = response["description"].as_str().unwrap_or_default();
                assert!(!description.is_empty(), "{name} {status} doesn't say what it means");
                assert!(has_schema, "{name} {status} doesn't say what it answers with");
            }
        }
    }
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(document["components"]["schemas"][name].is_object(), "{name} is used but not described");
    }
}

/// A parameter is where the document says: in the path exactly if the path names it, in the query if the route reads it there.
#[test]
fn parameters_are_where_the_routes_read_them() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let document = document();
    for (path, item) in document["paths"].as_object().expect("an object") {
        for (method, operation) in item.as_object().expect("an object") {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let in_path = parameters.iter().filter(|parameter| is_where_it_is_read(&plane, path, parameter)).count();
            assert_eq!(in_path, path.matches('{').count(), "{method} {path} doesn't describe its path");
            let has_key = operation["parameters"].to_string().contains("Idempotency-Key");
            assert_eq!(has_key, method == "post", "{method} {path}");
        }
    }
}

/// Checks a parameter, and says whether it is in the path.
fn is_where_it_is_read(plane: &Plane, path: &str, parameter: &Value) -> bool {
    let (name, place) = (parameter["name"].as_str().expect("a name"), parameter["in"].as_str());
    let is_named = path.contains(&format!("{{{name}}}"));
    assert_eq!(place == Some("path"), is_named, "{path}: {name} in {place:?}");
    assert_eq!(parameter["required"] == json!(true), is_named, "{path}: {name}");
    if place == Some("query") {
        let target = path.strip_prefix("/api/v1").expect("all are below").replace("{job}", "job-1");
        let unknown = plane.get(&format!("{target}?un{name}=1"));
        assert!(unknown.text.contains(&format!("`{name}`")), "{path} doesn't read {name}: {unknown:?}");
    }
    is_named
}

/// Whether the document has the answer that a route gave.
fn check(document: &Value, method: &str, path: &str, answer: &Answer, status: u16) {
    let name = format!("{method} {path}");
    assert_eq!(answer.refusal().0, status, "{name}: {answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{name} {status}");
    let response = &document["paths"][path][method.to_lowercase()]["responses"][status.to_string()];
    let schema = &response["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(schema, "#/components/schemas/ErrorBody", "{name} answers with {status}, which isn't described");
}

/// The headers and the body of the smallest request that is well formed.
fn least_request(operation: &Value) -> (&'static [(&'static str, &'static str)], &'static str) {
    if operation["requestBody"].is_object() { (&[("content-type", "application/json")], "{}") } else { (&[], "") }
}

/// For each class of error: what the routes answer with is what the document says.
#[test]
fn each_class_of_errors_is_described_where_it_is_met() {
    let plane = Plane::with_journal(db::Options { bytes_max: Bytes(384 << 10), ..db::Options::default() });
    let document = document();
    let bearer = plane.bearer();
    let send = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let target = path.replace("{job}", "job-1").replace("{sweep}", "sweep-9").replace("{node}", "n1");
        let token = headers.iter().any(|(name, _)| *name == "authorization");
        let own = [("authorization", bearer.as_str())];
        let all = [headers, if token { &[] } else { &own }].concat();
        plane.send(method, &target, &all, body.as_bytes())
    };
    let json_type = [("content-type", "application/json")];
    for (path, item) in document["paths"].as_object().expect("an object") {
        for (method, operation) in item.as_object().expect("an object") {
            let method = method.to_uppercase();
            let foreign = send(&method, path, &[("host", "example.com")], "");
            check(&document, &method, path, &foreign, 403);
            if path != "/api/v1/health" {
                check(&document, &method, path, &send(&method, path, &[("authorization", "Bearer x")], ""), 401);
            }
            if method == "POST" {
                check(&document, &method, path, &send(&method, path, &[("idempotency-key", "")], ""), 400);
                let big = "x".repeat((1 << 20) + 1);
                check(&document, &method, path, &send(&method, path, &[("idempotency-key", "big")], &big), 413);
            }
            if operation["requestBody"].is_object() {
                check(&document, &method, path, &send(&method, path, &[], "{}"), 415);
                check(&document, &method, path, &send(&method, path, &json_type, "{"), 400);
                check(&document, &method, path, &send(&method, path, &json_type, "{\"no\": 1}"), 400);
                check(&document, &method, path, &send(&method, path, &json_type, &" ".repeat((1 << 20) + 1)), 413);
            }
            if path.contains("{job}") || path.contains("{sweep}") {
                let (headers, body) = least_request(operation);
                check(&document, &method, path, &send(&method, path, headers, body), 404);
            }
        }
    }
    check(&document, "GET", "/api/v1/jobs", &send("GET", "/api/v1/jobs?before=x", &[], ""), 404);
    check(&document, "GET", "/api/v1/jobs", &send("GET", "/api/v1/jobs?limit=x", &[], ""), 400);
    let huge = plane.submit_text("resources: {accelerators: \"cpu:3\"}\nrun: train\n", false);
    check(&document, "POST", "/api/v1/jobs", &huge, 422);
    let job = plane.submit("a", 1);
    assert_eq!(plane.post(&format!("/jobs/{job}/cancel"), &json!({})).status, 200);
    let waiting = ["b", "c", "d"].map(|name| plane.submit(name, 2));
    assert_eq!(plane.post(&format!("/jobs/{}/cancel", waiting[2]), &json!({})).status, 200);
    let ended = plane.post(&format!("/jobs/{}/cancel", waiting[2]), &json!({}));
    check(&document, "POST", "/api/v1/jobs/{job}/cancel", &ended, 409);
    for path in ["/api/v1/nodes/{node}/drain", "/api/v1/nodes/{node}/undrain"] {
        check(&document, "POST", path, &send("POST", &path.replace("{node}", "n9"), &json_type, "{}"), 404);
    }
    let bulky = format!("run: 'true # {}'\n", "x".repeat(120_000));
    let full = plane.submit_text(&bulky, false);
    check(&document, "POST", "/api/v1/jobs", &full, 503);
    assert_eq!(full.refusal_code().as_deref(), Some("G0214"), "what is left is kept for the jobs that are there");
    plane.break_journal();
    check(&document, "POST", "/api/v1/jobs", &plane.submit_text("run: train\n", false), 503);
    check(&document, "GET", "/api/v1/health", &send("GET", "/api/v1/health", &[], ""), 503);
    check(
        &document,
        "POST",
        "/api/v1/nodes/{node}/undrain",
        &send("POST", "/api/v1/nodes/{node}/undrain", &[], ""),
        503,
    );
}

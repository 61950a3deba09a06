//! The OpenAPI document: checked in, complete, and true.

use serde_json::Value;

use crate::plane::Plane;

/// Where it is checked in.
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

fn document() -> Value {
    serde_json::to_value(gangline_control::http::openapi_document()).expect("it is JSON")
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

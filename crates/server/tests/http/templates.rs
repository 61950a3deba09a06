//! Templates over HTTP.

use serde_json::json;

use crate::plane::Plane;

#[test]
fn a_job_takes_over_what_a_template_of_the_data_folder_says_and_a_mistake_in_it_is_named() {
    let plane = Plane::start();
    let file = "name: small\ntemplate: pair\nrun: train\n";
    let missing = plane.submit_text(file, false);
    assert_eq!(missing.refusal(), (400, "G0100".to_owned()));
    let hint = missing.json()["error"]["problems"][0]["hint"].to_string();
    assert!(hint.contains("put one into ") && hint.contains("/templates"), "{hint}");
    let folder = plane.app.folder.join("templates");
    std::fs::create_dir(&folder).expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("a file");
    write("pair.yaml", "# Two slots\nresources: {accelerators: \"cpu:2\"}\n");
    write("wrong.yaml", "resources: {accelerators: \"cpu:none\"}\n");
    write("notes.txt", "no template");
    let submitted = plane.submit_text(file, false).json()["submitted"]["job"].clone();
    assert_eq!(plane.job(submitted.as_str().expect("an id")).gang.accelerators_per_node, 2);
    let wrong = plane.submit_text("template: [pair, wrong]\nrun: x\n", false).json();
    assert_eq!(wrong["error"]["problems"][0]["place"], "template wrong:1:27", "{wrong}");
    let list = plane.get("/templates").json();
    assert_eq!((&list["templates"][0]["name"], &list["templates"][2]), (&json!("pair"), &json!(null)));
    assert!(plane.get("/templates/pair").json()["text"].as_str().is_some_and(|text| text.starts_with("# Two")));
    for name in ["gone", "..%2Ftoken", "notes.txt"] {
        assert_eq!(plane.get(&format!("/templates/{name}")).refusal(), (404, "G0326".to_owned()), "{name}");
    }
}

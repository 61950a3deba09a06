//! The model card of an export: Markdown with a head in YAML, as Hugging Face's hub reads it
//! (<https://huggingface.co/docs/hub/model-cards>).

use gangline_api as api;
use gangline_base::Bytes;
use gangline_storage::Exported;

use super::lineage;

/// Returns the card of a version.
pub(super) fn of(version: &api::ModelVersion, exported: &Exported) -> String {
    // A text in JSON is one in YAML too.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut card = format!(
        "---\nmodel_name: {}\ntags:\n- gangline\n---\n\n# {}, version {}\n\n",
        quoted(&version.model),
        version.model,
        version.number
    );
    if !version.description.is_empty() {
        card += &format!("{}\n\n", version.description);
    }
    card += &format!(
        "{} tensors, {}, exported by Gangline {} from the checkpoint of step {}; every byte was compared with its hash.\n",
        exported.tensors,
        Bytes(exported.bytes.0),
        env!("CARGO_PKG_VERSION"),
        exported.step
    );
    let Some(found) = &version.lineage else { return card };
    card +=
        "\n## Lineage\n\nWritten down when the version was made; `lineage.json` has all of it.\n\n| | |\n|---|---|\n";
    for (name, value) in lineage::facts(version, found) {
        card += &format!("| {} | {} |\n", cell(&name), cell(&value));
    }
    if !found.unknown.is_empty() {
        card += "\nNot known:\n\n";
        card.extend(found.unknown.iter().map(|unknown| format!("- {unknown}\n")));
    }
    card
}

/// Returns a text as the cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ")
}

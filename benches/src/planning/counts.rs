//! Parameters: counted ones must be those that are published, to the last.
//!
//! Three places state counts: tables of configurations, rows of runs whose notes say `NumParams=`, and rows of adapters that say what
//! they train. A published count may include the routers' correction biases, which aren't parameters; it is then told so.

use gangline_planning::model::Model;
use gangline_planning::model::catalog::Catalog;
use gangline_planning::model::config;
use gangline_planning::workload::{Lora, LoraForm, LoraTarget};

use super::table::{Row, Table};

/// Counts of one kind.
#[derive(Debug, Default, PartialEq)]
struct Count {
    exact: usize,
    /// Rows whose published count includes so many correction biases.
    corrected: Vec<String>,
    wrong: Vec<String>,
    /// Rows that can't be counted, and why.
    refused: Vec<String>,
}

/// What a row states, beside what is counted.
enum Outcome {
    Exact,
    /// Exact with the routers' correction biases.
    Corrected(String),
    Wrong(String),
    Refused(String),
}

/// Compares every count in these tables and prints a line for each kind; whether all are exact.
pub(super) fn judge<'a>(tables: impl Iterator<Item = &'a Table> + Clone) -> bool {
    let catalog = Catalog::built_in();
    let rows = || tables.clone().flat_map(|table| &table.rows);
    let configurations = count(rows().filter(|row| !row.text("config").is_empty()).map(of_configuration));
    let runs = count(rows().filter_map(|row| Some(of_run(&catalog, row, stated_in_notes(row)?))));
    let adapters = rows().filter(|row| row.text("method") == "lora" && row.number("trainable_params").is_some());
    let adapters = count(adapters.map(|row| of_adapters(&catalog, row)));
    let kinds = [("configurations", configurations), ("models of runs", runs), ("adapters", adapters)];
    kinds.iter().filter(|(_, count)| *count != Count::default()).for_each(|(name, count)| print(name, count));
    kinds.iter().all(|(_, count)| count.wrong.is_empty())
}

fn count(outcomes: impl Iterator<Item = Outcome>) -> Count {
    let mut count = Count::default();
    for outcome in outcomes {
        match outcome {
            Outcome::Exact => count.exact += 1,
            Outcome::Corrected(row) => {
                count.exact += 1;
                count.corrected.push(row);
            }
            Outcome::Wrong(row) => count.wrong.push(row),
            Outcome::Refused(row) => count.refused.push(row),
        }
    }
    count
}

fn print(name: &str, count: &Count) {
    println!(
        "parameters of {name}: {} exact, {} wrong, {} not taken",
        count.exact,
        count.wrong.len(),
        count.refused.len()
    );
    for (what, rows) in [("", &count.corrected), ("wrong: ", &count.wrong), ("not taken: ", &count.refused)] {
        rows.iter().for_each(|row| println!("  {what}{row}"));
    }
}

/// A row with a `config.json` and the count of transformers or of the checkpoint.
fn of_configuration(row: &Row) -> Outcome {
    let name = row.text("model");
    let refused = |why: String| Outcome::Refused(format!("{name}: {why}"));
    let Some(fields) = row.text("config").strip_prefix('{') else { return refused("its config is no object".into()) };
    let text = match row.text("model_type") {
        "" => row.text("config").to_owned(),
        family => format!("{{\"model_type\": \"{family}\", {fields}"),
    };
    let model = match config::read(name, &text) {
        Ok(model) => model,
        Err(error) => return refused(error.to_string()),
    };
    let stated = ["params_transformers_meta", "published"].map(|column| row.text(column).parse::<u64>().ok());
    compared(name, &model, &stated.into_iter().flatten().collect::<Vec<u64>>())
}

/// The model's count beside the stated ones, each with or without the correction biases.
fn compared(name: &str, model: &Model, stated: &[u64]) -> Outcome {
    let count = model.parameters();
    let with_corrections = count.total + count.corrections;
    let wrong: Vec<&u64> = stated.iter().filter(|stated| ![count.total, with_corrections].contains(stated)).collect();
    if let Some(stated) = wrong.first() {
        return Outcome::Wrong(format!("{name}: {} counted, {stated} stated", count.total));
    }
    if stated.is_empty() {
        return Outcome::Refused(format!("{name}: no count is stated"));
    }
    if count.corrections > 0 && stated.contains(&with_corrections) {
        let said =
            format!("{name}: {with_corrections} published = {} + {} router biases", count.total, count.corrections);
        return Outcome::Corrected(said);
    }
    Outcome::Exact
}

/// `NumParams=` in a row's notes.
fn stated_in_notes(row: &Row) -> Option<u64> {
    let (_, behind) = row.text("notes").split_once("NumParams=")?;
    behind.split(';').next()?.trim().parse().ok()
}

/// llm-foundry's MPTs learn a position for each token of the sequence.
fn of_run(catalog: &Catalog, row: &Row, stated: u64) -> Outcome {
    match (catalog.find(row.text("model")), row.count("seq")) {
        (Ok(model), Some(sequence)) => compared(row.text("id"), &model.with_positions(u64::from(sequence)), &[stated]),
        (Err(error), _) => Outcome::Refused(format!("{}: {error}", row.text("id"))),
        (_, None) => Outcome::Refused(format!("{}: it has no sequence", row.text("id"))),
    }
}

/// What adapters train, and with the frozen weights in all if that is stated.
fn of_adapters(catalog: &Catalog, row: &Row) -> Outcome {
    let id = row.text("id");
    let refused = |why: String| Outcome::Refused(format!("{id}: {why}"));
    let model = match catalog.find(row.text("model")) {
        Ok(model) => model,
        Err(error) => return refused(error.to_string()),
    };
    let named = row.text("lora_targets").split('(').next().unwrap_or_default();
    let words = named.split([' ', ',']).filter(|word| !word.is_empty());
    let Some(targets) = words.map(LoraTarget::named).collect::<Option<Vec<LoraTarget>>>() else {
        return refused(format!("its targets `{named}` are not known"));
    };
    let (Some(rank), Ok(stated)) = (row.count("lora_r"), row.text("trainable_params").parse::<u64>()) else {
        return refused("it has no rank".into());
    };
    let lora = Lora { rank: u64::from(rank), targets, form: form(row) };
    match model.lora_parameters(&lora) {
        Ok(trained) if trained == stated => Outcome::Exact,
        Ok(trained) => Outcome::Wrong(format!("{id}: {trained} counted, {stated} stated")),
        Err(error) => refused(error.to_string()),
    }
}

/// What is trained of each adapter, by the name of the experiment.
fn form(row: &Row) -> LoraForm {
    let name = row.lower("ref");
    match () {
        () if name.contains("bdlora") => LoraForm::BlockDiagonal { blocks: BLOCKS_OF_BD_LORA },
        () if name.contains("dora") => LoraForm::WeightDecomposed,
        () if name.contains("lorafa") => LoraForm::FrozenDown,
        () if name.contains("mica") => LoraForm::FrozenUp,
        () => LoraForm::Plain,
    }
}

/// Blocks in PEFT's experiment with BD-LoRA (`nblocks` in its adapter_config.json).
const BLOCKS_OF_BD_LORA: std::num::NonZeroU64 = std::num::NonZeroU64::new(2).expect("2 is not 0");

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "{\"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32, \
        \"num_attention_heads\": 32, \"vocab_size\": 32000}";

    fn configuration(family: &str, published: &str) -> Count {
        let row = Row::of(&[("model", "x"), ("model_type", family), ("config", CONFIG), ("published", published)]);
        count(std::iter::once(of_configuration(&row)))
    }

    #[test]
    fn a_count_is_exact_or_wrong_to_the_last_parameter() {
        assert_eq!(configuration("llama", "6738415616").exact, 1);
        assert_eq!(configuration("llama", "6738415617").wrong, ["x: 6738415616 counted, 6738415617 stated"]);
    }

    #[test]
    fn what_cannot_be_counted_is_not_taken_and_says_why() {
        let refused = configuration("llamma", "6738415616").refused;
        assert!(refused[0].starts_with("x: `model_type` is `llamma`, which is not supported"), "{refused:?}");
        assert_eq!(configuration("llama", "").refused, ["x: no count is stated"]);
    }

    #[test]
    fn notes_and_adapters_state_counts_too() {
        let catalog = Catalog::built_in();
        let notes = "NumParams=6652567552; MP mode DEFAULT";
        let run = Row::of(&[("id", "a"), ("model", "MPT-7b"), ("seq", "512"), ("notes", notes)]);
        assert_eq!(stated_in_notes(&run), Some(6_652_567_552));
        assert!(matches!(of_run(&catalog, &run, 6_652_567_552), Outcome::Exact));
        assert!(matches!(of_run(&catalog, &run, 6_652_567_551), Outcome::Wrong(_)));
        let adapter = |trained: &str, experiment: &str| {
            let fields = [("model", "Llama-3.2-3B"), ("lora_r", "32"), ("lora_targets", "q_proj v_proj")];
            let stated = [("trainable_params", trained), ("ref", experiment)];
            of_adapters(&catalog, &Row::of(&[fields.as_slice(), stated.as_slice()].concat()))
        };
        assert!(matches!(adapter("9175040", "lora-rank32.json"), Outcome::Exact));
        assert!(matches!(adapter("9289728", "lora-rank32-dora.json"), Outcome::Exact));
        assert!(matches!(adapter("9289728", "lora-rank32.json"), Outcome::Wrong(_)));
    }
}

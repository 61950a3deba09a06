//! Configurations that are no model: each is refused with the field and what to change.

use serde_json::{Map, Value};

use super::super::catalog::Catalog;
use super::super::config::{ConfigError, read, read_map};
use super::super::flops::Mask;

/// A good Llama with one field replaced or added, or removed where the value is nothing.
fn llama_with(field: &str, value: &str) -> Result<u64, String> {
    let good = [
        ("model_type", "\"llama\""),
        ("hidden_size", "4096"),
        ("intermediate_size", "11008"),
        ("num_hidden_layers", "32"),
        ("num_attention_heads", "32"),
        ("vocab_size", "32000"),
    ];
    let mut fields: Vec<(&str, &str)> = good.into_iter().filter(|(name, _)| *name != field).collect();
    if !value.is_empty() {
        fields.push((field, value));
    }
    let lines: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    let text = format!("{{{}}}", lines.join(", "));
    read("x", &text).map(|model| model.parameters().total).map_err(|error| error.to_string())
}

#[test]
fn what_is_missing_is_named() {
    assert_eq!(llama_with("nothing", "null"), Ok(6_738_415_616));
    assert_eq!(llama_with("vocab_size", ""), Err("config.json lacks `vocab_size`, which llama needs".to_owned()));
    assert_eq!(llama_with("hidden_size", "null"), Err("config.json lacks `hidden_size`, which llama needs".to_owned()));
    assert_eq!(llama_with("model_type", ""), Err("config.json lacks `model_type`, which a model needs".to_owned()));
}

#[test]
fn what_is_of_the_wrong_kind_is_named_with_what_it_should_be() {
    let expected = "a whole number of at most 1048576";
    for (value, shown) in [("-1", "-1"), ("4096.5", "4096.5"), ("\"4096\"", "\"4096\""), ("1e30", "1e+30")] {
        let refusal = format!("`hidden_size` in config.json is {shown}: it should be {expected}");
        assert_eq!(llama_with("hidden_size", value), Err(refusal));
    }
    let refusal = "`num_attention_heads` in config.json is 0: it should be at least 1";
    assert_eq!(llama_with("num_attention_heads", "0"), Err(refusal.to_owned()));
    let refusal = "`tie_word_embeddings` in config.json is \"yes\": it should be true or false";
    assert_eq!(llama_with("tie_word_embeddings", "\"yes\""), Err(refusal.to_owned()));
}

#[test]
fn heads_that_divide_nothing_contradict() {
    let refusal = llama_with("num_attention_heads", "31").unwrap_err();
    assert!(refusal.starts_with("`num_attention_heads` and `hidden_size` in config.json contradict"), "{refusal}");
    assert!(refusal.contains("31 heads don't divide a width of 4096, and there is no `head_dim`"), "{refusal}");
    let refusal = llama_with("num_key_value_heads", "5").unwrap_err();
    assert!(refusal.contains("32 query heads can't share 5"), "{refusal}");
}

#[test]
fn an_unknown_architecture_is_told_the_nearest() {
    let refusal = llama_with("model_type", "\"mixtrall\"").unwrap_err();
    assert!(
        refusal.starts_with("`model_type` is `mixtrall`, which is not supported: the nearest are `mixtral`,"),
        "{refusal}"
    );
}

#[test]
fn experts_and_layers_that_contradict_are_refused() {
    let base = |more: &str| {
        let config = format!(
            "{{\"model_type\": \"mixtral\", \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 2,
              \"num_attention_heads\": 32, \"vocab_size\": 32000, {more}}}"
        );
        read("x", &config).map(|model| model.parameters().total).map_err(|error| error.to_string())
    };
    assert!(base("\"num_local_experts\": 8, \"num_experts_per_tok\": 2").is_ok());
    let refusal = base("\"num_local_experts\": 8, \"num_experts_per_tok\": 9").unwrap_err();
    assert!(refusal.contains("a token can't go to 9 of 8 experts"), "{refusal}");
    let types = "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"layer_types\": [\"full_attention\"]";
    let refusal = base(types).unwrap_err();
    assert!(refusal.contains("there are 2 layers and 1 types of layers"), "{refusal}");
}

#[test]
fn a_hostile_text_is_refused_before_it_costs_anything() {
    let long = " ".repeat((1 << 20) + 1);
    assert!(matches!(read("x", &long), Err(ConfigError::TooLong { bytes: 1_048_577 })));
    assert!(matches!(read("x", "[1, 2]"), Err(ConfigError::Malformed(_))));
    assert!(matches!(read("x", &"[".repeat(100_000)), Err(ConfigError::Malformed(_))));
    let refusal = llama_with("num_hidden_layers", "4097").unwrap_err();
    assert!(refusal.contains("a whole number of at most 4096"), "{refusal}");
}

/// The greatest sizes that each field may have overflow nothing, and are refused together.
#[test]
fn sizes_that_are_possible_alone_are_refused_together() {
    for family in super::super::families::names() {
        let wide = ["hidden_size", "intermediate_size", "head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim"];
        let heads =
            ["num_attention_heads", "num_key_value_heads", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size"];
        let mamba =
            ["mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "expansion_ratio"];
        let shared = ["n_shared_experts", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"];
        let mut fields: Vec<String> = vec![format!("\"model_type\": \"{family}\"")];
        let widths = wide.iter().chain(&heads).chain(&mamba).chain(&shared);
        fields.extend(widths.map(|name| format!("\"{name}\": {}", 1 << 20)));
        for name in ["num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"] {
            fields.push(format!("\"{name}\": {}", 1 << 14));
        }
        fields.push(format!("\"num_hidden_layers\": 4096, \"vocab_size\": {}, \"n_heads\": {}", 1 << 25, 1 << 20));
        let inside = format!("\"moe_num_experts\": {}, \"moe_top_k\": 1, \"ffn_hidden_size\": {}", 1 << 14, 1 << 20);
        fields.push(format!("\"ffn_config\": {{{inside}}}"));
        fields.push(format!("\"hybrid_override_pattern\": \"{}\"", "ME*-".repeat(1024)));
        let refusal = read("x", &format!("{{{}}}", fields.join(", "))).unwrap_err();
        assert!(matches!(refusal, ConfigError::TooLarge { .. }), "{family}: {refusal}");
    }
}

/// Whatever a field of a known model is replaced by, the answer is a model that can be counted, or a refusal.
#[test]
fn a_field_of_any_value_is_read_or_refused() {
    let values = [
        Value::Null,
        Value::from(0),
        Value::from(-1),
        Value::from(1),
        Value::from(3),
        Value::from(1 << 20),
        Value::from(u64::MAX),
        Value::from(0.5),
        Value::from(""),
        Value::from("MEM*-Q"),
        Value::from(true),
        Value::from(vec![1, 2]),
        Value::from(vec!["full_attention"; 7]),
        Value::from(Map::new()),
    ];
    let mut read_count = 0;
    for (name, entry) in Catalog::built_in().entries() {
        for field in entry.config.keys() {
            for value in &values {
                let mut config = entry.config.clone();
                config.insert(field.clone(), value.clone());
                let Ok(model) = read_map(name, &config) else { continue };
                read_count += 1;
                let count = model.parameters();
                assert!(count.active <= count.total && count.total > 0, "{name}: {field} = {value}");
                let flops = model.forward_flops(4096, Mask::Causal).total().get();
                assert!(flops.is_finite() && flops > 0.0, "{name}: {field} = {value}");
            }
        }
    }
    assert!(read_count > 1000, "{read_count}");
}

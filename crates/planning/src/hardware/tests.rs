//! The built-in book, its names, and files that are refused.

use super::*;
use crate::hardware::{Generation, StorageUnit, entries};
use crate::units::{Bandwidth, FlopRate, Seconds, Volume};

#[test]
fn every_built_in_accelerator_is_possible() {
    let book = Book::built_in();
    assert!(book.accelerators().count() >= 49);
    for (name, fact) in book.accelerators() {
        let it = &fact.value;
        assert!(it.memory >= Volume::new(15e9) && it.memory <= Volume::new(320e9), "{name}: {:?}", it.memory);
        assert!(it.memory_bandwidth >= Bandwidth::new(3e11), "{name}");
        let ranked = [it.peaks.tf32, it.peaks.fp16, it.peaks.fp8, it.peaks.fp4];
        let peaks: Vec<FlopRate> = ranked.into_iter().flatten().collect();
        assert!(peaks.is_sorted(), "{name}: narrower formats are no slower: {peaks:?}");
        assert_eq!(it.link_domain > 1, it.link > Bandwidth::ZERO && it.link_domain > 1, "{name}");
        assert!(!fact.source.is_empty(), "{name}");
    }
}

#[test]
fn amounts_are_each_way_dense_and_as_programs_see_them() {
    let book = Book::built_in();
    let h100 = &book.accelerator("H100").unwrap().value;
    assert_eq!((h100.name.as_str(), h100.generation), ("H100-SXM5-80GB", Generation::Hopper));
    assert_eq!(h100.peaks.bf16, Some(FlopRate::new(989.4e12)));
    assert_eq!((h100.link, h100.link_domain), (Bandwidth::new(450e9), 8));
    assert!((h100.memory.gib() - 79.65).abs() < 0.01, "{}", h100.memory.gib());
    let ndr = &book.fabric("infiniband-ndr").unwrap().value;
    assert_eq!((ndr.per_accelerator, ndr.latency), (Bandwidth::new(50e9), Seconds::new(2e-6)));
    assert_eq!(book.storage("lustre").unwrap().value.of, StorageUnit::Tebibyte);
}

#[test]
fn spelling_vendor_and_memory_do_not_matter() {
    let book = Book::built_in();
    for (written, name) in [
        ("h100-sxm-80g", "H100-SXM5-80GB"),
        ("H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("A100", "A100-SXM4-80GB"),
        ("A100-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("A800-80GB", "A800-SXM4-80GB"),
        ("V100-SXM3-32GB (DGX-2)", "V100-SXM3-32GB"),
        ("V100-32GB", "V100-SXM2-32GB"),
        ("NVIDIA L40S", "L40S"),
        ("A10G-24GB", "A10G"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx-3090", "RTX 3090"),
        ("B200-SXM-180GB", "B200"),
        ("gb200 nvl72", "GB200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("TPU v5p", "TPUv5p"),
        ("trn2", "Trainium2"),
    ] {
        let found = book.accelerator(written).map(|fact| fact.value.name.clone());
        assert_eq!(found.as_deref(), Ok(name), "{written}");
    }
}

#[test]
fn an_unknown_name_is_told_the_nearest_and_an_ambiguous_one_what_it_may_be() {
    let book = Book::built_in();
    let text = book.accelerator("H101").unwrap_err().to_string();
    assert!(text.starts_with("no accelerator is called `H101`: the nearest are `H100`"), "{text}");
    let text = book.accelerator("PCIe 80GB").unwrap_err().to_string();
    assert!(text.starts_with("`PCIe 80GB` may be `A100-PCIe-80GB` or `H100-PCIe`"), "{text}");
    assert!(book.accelerator("").is_err());
    assert!(book.accelerator(&"h".repeat(1_000_000)).is_err());
    assert!(book.fabric("infiniband-xyz").is_err());
}

const MINE: &str = "[accelerator.X1]\ngeneration = \"other\"\nmemory = \"64GB\"\nmemory_bandwidth = \"2TB/s\"\n\
    source = \"me\"\nas_of = \"2026-11-22\"\n";

#[test]
fn a_file_of_ones_own_adds_entries_and_replaces_single_fields() {
    let more = format!("{MINE}[accelerator.\"H100-SXM5-80GB\"]\npower = \"600W\"\n");
    let book = Book::built_in().with("mine.toml", &more).unwrap();
    assert_eq!(book.accelerator("x1").unwrap().value.memory, Volume::new(64e9));
    let h100 = &book.accelerator("H100").unwrap().value;
    assert_eq!((h100.watts, h100.memory_bandwidth), (600.0, Bandwidth::new(3350e9)));
}

#[test]
fn a_missing_unit_is_refused_with_file_entry_and_field() {
    let refusal = |text: &str| Book::built_in().with("mine.toml", text).unwrap_err().to_string();
    assert_eq!(
        refusal(&MINE.replace("64GB", "64")),
        "`memory` of accelerator.X1 in mine.toml is \"64\": write a size with its unit, such as \"80GB\" or \"81559MiB\""
    );
    assert!(
        refusal(&MINE.replace("\"64GB\"", "64")).starts_with("`memory` of accelerator.X1 in mine.toml is 64: write")
    );
    assert!(refusal(&MINE.replace("2TB/s", "2TB")).contains("\"2TB\": write a rate with its unit"));
    let unknown = refusal(&MINE.replace("source", "sources"));
    assert!(unknown.starts_with("`sources` of accelerator.X1 in mine.toml is not known: the nearest are `source`"));
    assert_eq!(refusal(&MINE.replace("memory =", "visible =")), "accelerator.X1 in mine.toml lacks `memory`");
    assert!(refusal(&MINE.replace("2026-11-22", "yesterday")).contains("a day such as"));
    assert!(refusal(&MINE.replace("2026-11-22", "2026-13-45")).contains("`as_of` of accelerator.X1"));
    assert!(refusal(&format!("{MINE}link = \"1GB/s\"\n")).ends_with("lacks `link_domain`"));
    assert!(refusal("[gpu.X1]\n").starts_with("mine.toml has a table `gpu`: write [accelerator.NAME]"));
    assert!(refusal("accelerator = 3\n").contains("has a table `accelerator`"));
    assert_eq!(refusal("["), "mine.toml is not TOML");
    assert!(refusal(&" ".repeat(2 << 20)).contains("2097152 bytes"));
}

/// Whatever a field of a built-in entry is replaced by, the answer is a book or a refusal that names it.
#[test]
fn a_field_of_any_value_is_read_or_refused() {
    let values = [
        "0",
        "-1",
        "1e400",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\"GB\"",
        "\"1e400GB/s\"",
        "\"NaNTFLOPS\"",
        "9223372036854775807",
    ];
    let mut refused = 0;
    for (kind, entry, fields) in [
        ("accelerator", "\"H100-SXM5-80GB\"", entries::ACCELERATOR.as_slice()),
        ("fabric", "infiniband-ndr", entries::FABRIC.as_slice()),
        ("storage", "lustre-1000", entries::STORAGE.as_slice()),
    ] {
        for field in fields {
            for value in values {
                let text = format!("[{kind}.{entry}]\n{field} = {value}\n");
                let Err(error) = Book::built_in().with("mine.toml", &text) else { continue };
                refused += 1;
                assert!(error.to_string().contains("mine.toml"), "{text}: {error}");
            }
        }
    }
    assert!(refused > 200, "{refused}");
}

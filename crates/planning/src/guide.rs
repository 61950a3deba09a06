//! The blocks of docs/guides/add-a-model.md are read by the code that reads the real files.

use gangline_accounting::{PriceBook, Terms};

use crate::hardware::book::Book;
use crate::model::catalog::Catalog;

const GUIDE: &str = include_str!("../../../docs/guides/add-a-model.md");

/// The block of TOML behind a mark.
fn block(kind: &str) -> &'static str {
    let (_, behind) = GUIDE.split_once(&format!("<!-- read as: {kind} -->\n```toml\n")).unwrap();
    behind.split_once("```").unwrap().0
}

#[test]
fn the_guides_model_is_one() {
    let catalog = Catalog::read(block("model")).unwrap();
    let model = catalog.find("My Favourite 3B-Instruct").unwrap();
    let (_, entry) = catalog.entries().next().unwrap();
    assert_eq!(Some(model.parameters().total), entry.parameters);
}

#[test]
fn the_guides_family_is_the_one_in_the_code() {
    let (_, behind) = GUIDE.split_once("```rust\n").unwrap();
    let function = behind.split_once("```").unwrap().0;
    assert!(include_str!("model/families/decoders.rs").contains(function));
}

#[test]
fn the_guides_accelerator_and_fabric_are_read() {
    let book = Book::built_in().with("guide.toml", block("hardware")).unwrap();
    assert_eq!(book.accelerator("X100").unwrap().value.link_domain, 8);
    assert_eq!(book.accelerator("H100").unwrap().value.watts, 600.0);
    assert!(book.fabric("our-fabric").is_ok());
}

#[test]
fn the_guides_price_is_read() {
    let book = PriceBook::built_in().with("guide.toml", block("prices")).unwrap();
    assert_eq!(book.accelerator("H100-SXM5-80GB", Terms::BareMetal)[0].provider, "our-landlord");
}

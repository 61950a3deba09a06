//! A Rust source file as the rules see it: its text, its tokens, its functions, and what in it is prose or test code.

use std::ops::RangeInclusive;

use anyhow::Context as _;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// One Rust file, parsed.
pub(crate) struct Source {
    /// Relative to the workspace, with `/`.
    pub(crate) path: String,
    /// As it is on disk.
    pub(crate) text: String,
    /// The text with every string and character literal blanked: code and comments only.
    pub(crate) prose: String,
    /// All tokens in order, groups opened up. Comments are no tokens, but doc comments are (as `# [ doc = "…" ]`).
    pub(crate) tokens: Vec<Token>,
    /// The syntax tree.
    pub(crate) ast: syn::File,
    /// Every function with a body, and every `macro_rules!`, in order.
    pub(crate) functions: Vec<Function>,
    test_modules: Vec<RangeInclusive<usize>>,
}

/// A token and where it stands.
pub(crate) struct Token {
    /// The identifier, literal or bracket; punctuation one character each, except that `::` is one token.
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
}

/// A function, method or `macro_rules!`.
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Whether an attribute such as `#[test]` or `#[tokio::test]` makes it a test.
    pub(crate) is_test: bool,
    /// From its first attribute or doc comment to its closing brace.
    pub(crate) lines: RangeInclusive<usize>,
    /// From `fn` to its closing brace.
    pub(crate) body_lines: RangeInclusive<usize>,
}

impl Source {
    /// Parses a file.
    ///
    /// # Errors
    /// When it isn't Rust.
    pub(crate) fn parse(path: &str, text: &str) -> anyhow::Result<Self> {
        let stream: TokenStream =
            text.parse().map_err(|error: proc_macro2::LexError| anyhow::anyhow!("{error}")).context("tokenize")?;
        let ast = syn::parse_file(text)?;
        let mut flattened = Flattened { tokens: Vec::new(), prose: text.to_owned().into_bytes() };
        flattened.add(stream);
        let mut outline = Outline::default();
        outline.visit_file(&ast);
        Ok(Source {
            path: path.to_owned(),
            text: text.to_owned(),
            prose: String::from_utf8(flattened.prose).context("blank the literals")?,
            tokens: flattened.tokens,
            ast,
            functions: outline.functions,
            test_modules: outline.test_modules,
        })
    }

    /// The package's folder: `crates/base`, `tests`, `xtask`, `examples/tinygpt`.
    pub(crate) fn package(&self) -> &str {
        let depth = if self.path.starts_with("crates/") || self.path.starts_with("examples/") { 2 } else { 1 };
        let end = self.path.match_indices('/').nth(depth - 1).map_or(self.path.len(), |(at, _)| at);
        &self.path[..end]
    }

    /// Whether a line is test code: in a `tests` folder or file (`tests.rs`, or a name that ends in `_tests`), or inside `#[cfg(test)] mod`.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
            || self.test_modules.iter().any(|lines| lines.contains(&line))
    }

    /// The lines on which a sequence of tokens begins.
    pub(crate) fn lines_with(&self, sequence: &[&str]) -> Vec<usize> {
        let is_match = |window: &[Token]| window.iter().zip(sequence).all(|(token, text)| token.text == *text);
        self.tokens.windows(sequence.len()).filter(|w| is_match(w)).map(|w| w[0].line).collect()
    }

    /// The tokens of a range of lines.
    pub(crate) fn tokens_in(&self, lines: &RangeInclusive<usize>) -> impl Iterator<Item = &Token> {
        self.tokens.iter().filter(move |token| lines.contains(&token.line))
    }

    /// Everything imported: each path in full (`std::env::var`, `a::*`) with its line, groups opened up.
    pub(crate) fn imports(&self) -> Vec<(String, usize)> {
        let mut imports = Imports { found: Vec::new() };
        imports.visit_file(&self.ast);
        imports.found
    }
}

struct Flattened {
    tokens: Vec<Token>,
    prose: Vec<u8>,
}

impl Flattened {
    fn add(&mut self, stream: TokenStream) {
        for tree in stream {
            match tree {
                TokenTree::Group(group) => {
                    let (open, close) = brackets(group.delimiter());
                    self.push(open, group.span_open().start().line);
                    self.add(group.stream());
                    self.push(close, group.span_close().end().line);
                }
                TokenTree::Literal(literal) => {
                    self.blank(literal.span());
                    self.push(&literal.to_string(), literal.span().start().line);
                }
                TokenTree::Ident(ident) => self.push(&ident.to_string(), ident.span().start().line),
                TokenTree::Punct(punct) => self.push(&punct.as_char().to_string(), punct.span().start().line),
            }
        }
    }

    fn push(&mut self, text: &str, line: usize) {
        match self.tokens.last_mut() {
            Some(last) if text == ":" && last.text == ":" => last.text = "::".to_owned(),
            _ => self.tokens.push(Token { text: text.to_owned(), line }),
        }
    }

    /// A literal whose source begins with a slash is a doc comment, which is prose.
    fn blank(&mut self, span: proc_macro2::Span) {
        let range = span.byte_range();
        if self.prose.get(range.start) == Some(&b'/') {
            return;
        }
        for byte in self.prose.get_mut(range).into_iter().flatten().filter(|byte| **byte != b'\n') {
            *byte = b' ';
        }
    }
}

fn brackets(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

#[derive(Default)]
struct Outline {
    functions: Vec<Function>,
    test_modules: Vec<RangeInclusive<usize>>,
}

impl Outline {
    fn add(&mut self, name: String, attributes: &[syn::Attribute], start: usize, end: usize) {
        let is_test = attributes.iter().any(|a| a.path().segments.last().is_some_and(|s| s.ident == "test"));
        let first = attributes.iter().map(|a| a.pound_token.span.start().line).min().unwrap_or(start);
        self.functions.push(Function { name, is_test, lines: first.min(start)..=end, body_lines: start..=end });
    }

    fn add_function(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature, block: &syn::Block) {
        let start = signature.fn_token.span.start().line;
        self.add(signature.ident.to_string(), attributes, start, block.brace_token.span.close().end().line);
    }
}

impl<'ast> Visit<'ast> for Outline {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add_function(&item.attrs, &item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add_function(&item.attrs, &item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add_function(&item.attrs, &item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if let Some(name) = &item.ident {
            let start = item.mac.bang_token.span.start().line;
            let end = item.mac.delimiter.span().close().end().line;
            self.add(format!("{name}!"), &item.attrs, start, end);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if let (true, Some((braces, _))) = (item.attrs.iter().any(is_cfg_test), &item.content) {
            self.test_modules.push(item.mod_token.span.start().line..=braces.span.close().end().line);
        }
        visit::visit_item_mod(self, item);
    }
}

/// `#[cfg(test)]` and `#[cfg(all(test, …))]`, but nothing with a `not`.
fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let mut flattened = Flattened { tokens: Vec::new(), prose: Vec::new() };
    flattened.add(list.tokens.clone());
    let has = |word: &str| flattened.tokens.iter().any(|token| token.text == word);
    list.path.is_ident("cfg") && has("test") && !has("not")
}

struct Imports {
    found: Vec<(String, usize)>,
}

impl Imports {
    fn open(&mut self, prefix: &str, tree: &syn::UseTree) {
        let join = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
        match tree {
            syn::UseTree::Path(path) => self.open(&join(&path.ident.to_string()), &path.tree),
            syn::UseTree::Name(name) => self.found.push((join(&name.ident.to_string()), line_of(&name.ident))),
            syn::UseTree::Rename(name) => self.found.push((join(&name.ident.to_string()), line_of(&name.ident))),
            syn::UseTree::Glob(glob) => self.found.push((join("*"), glob.star_token.span.start().line)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.open(prefix, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.open("", &item.tree);
    }
}

fn line_of(ident: &syn::Ident) -> usize {
    ident.span().start().line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Source {
        Source::parse("crates/base/src/x.rs", text).unwrap()
    }

    #[test]
    fn literals_are_blanked_and_comments_are_kept() {
        let source = parsed("//! Top é.\n/// Doc é \"quoted\".\nfn f() { g(\"hid\u{e9}den\", 'c'); } // tail\n");
        assert!(
            source.prose.contains("Top é.") && source.prose.contains("\"quoted\"") && source.prose.contains("tail")
        );
        assert!(!source.prose.contains("den"), "{}", source.prose);
        assert_eq!(source.prose.len(), source.text.len());
    }

    #[test]
    fn functions_are_found_wherever_they_stand() {
        let text = "fn a() {}\nimpl X {\n    /// Doc.\n    fn b() {\n    }\n}\ntrait T { fn none(); fn c() {} }\n\
                    macro_rules! m { () => {} }\n#[cfg(test)]\nmod t {\n    #[tokio::test]\n    async fn d() {}\n}\n";
        let source = parsed(text);
        let names: Vec<_> = source.functions.iter().map(|f| (f.name.as_str(), f.is_test)).collect();
        assert_eq!(names, [("a", false), ("b", false), ("c", false), ("m!", false), ("d", true)]);
        assert_eq!((source.functions[1].lines.clone(), source.functions[1].body_lines.clone()), (3..=5, 4..=5));
        assert!(source.is_test_line(12) && !source.is_test_line(2));
    }

    #[test]
    fn imports_are_opened_up() {
        let source = parsed("use std::{env::{self, var as v}, fs::*};\nuse a;\n");
        let paths: Vec<_> = source.imports().into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["std::env::self", "std::env::var", "std::fs::*", "a"]);
    }

    #[test]
    fn the_package_is_the_folder_that_holds_the_manifest() {
        let package = |path| Source::parse(path, "").unwrap().package().to_owned();
        assert_eq!(package("crates/base/src/lib.rs"), "crates/base");
        assert_eq!(package("examples/tinygpt/src/lib.rs"), "examples/tinygpt");
        assert_eq!(package("tests/e2e/mod.rs"), "tests");
    }

    #[test]
    fn what_is_not_rust_is_refused() {
        assert!(Source::parse("x.rs", "fn (").is_err());
        assert!(Source::parse("x.rs", "fn f() { let }").is_err());
    }
}

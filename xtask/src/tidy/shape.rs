//! Style 14: a function has at most 70 lines, a file at most 500, and control flow nests at most three deep.
//!
//! Lines are counted as a reader sees them, from `fn` to the closing brace, comments and blank lines too. Nesting counts
//! `if`, `match` and loops; an `else if` is not deeper than its `if`, and a function inside a function starts anew.

use syn::visit::{self, Visit};

use super::Breach;
use super::source::Source;
use super::workspace::Workspace;

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;
const NESTING_MAX: usize = 3;

/// Other files that people write and read.
const OTHER_EXTENSIONS: [&str; 4] = [".py", ".sql", ".css", ".js"];

pub(super) fn check(source: &Source) -> Vec<Breach> {
    let mut breaches = Vec::from_iter(long_file(&source.path, &source.text));
    for function in &source.functions {
        let lines = function.body_lines.clone().count();
        if lines > FUNCTION_LINES_MAX {
            let todo = format!("split `{}`: {lines} lines, at most {FUNCTION_LINES_MAX}", function.name);
            breaches.push(Breach::new(&source.path, *function.body_lines.start(), "function-length", todo));
        }
    }
    let mut nesting = Nesting { depth: 0, deep: Vec::new() };
    nesting.visit_file(&source.ast);
    let todo =
        format!("flatten it: control flow nests more than {NESTING_MAX} deep (return early, or name the inside)");
    breaches.extend(nesting.deep.iter().map(|line| Breach::new(&source.path, *line, "nesting", &*todo)));
    breaches
}

pub(super) fn check_other_files(workspace: &Workspace) -> Vec<Breach> {
    let others = workspace.files.iter().filter(|(path, _)| OTHER_EXTENSIONS.iter().any(|end| path.ends_with(end)));
    others.filter_map(|(path, text)| long_file(path, text)).collect()
}

fn long_file(path: &str, text: &str) -> Option<Breach> {
    let lines = text.lines().count();
    let todo = || format!("split the file: {lines} lines, at most {FILE_LINES_MAX}");
    (lines > FILE_LINES_MAX).then(|| Breach::new(path, FILE_LINES_MAX + 1, "file-length", todo()))
}

struct Nesting {
    depth: usize,
    deep: Vec<usize>,
}

impl Nesting {
    fn inside(&mut self, line: usize, visit: impl FnOnce(&mut Self)) {
        self.depth += 1;
        if self.depth == NESTING_MAX + 1 {
            self.deep.push(line);
        }
        visit(self);
        self.depth -= 1;
    }

    fn anew(&mut self, visit: impl FnOnce(&mut Self)) {
        let depth = std::mem::take(&mut self.depth);
        visit(self);
        self.depth = depth;
    }
}

impl<'ast> Visit<'ast> for Nesting {
    fn visit_expr_if(&mut self, expr: &'ast syn::ExprIf) {
        self.visit_expr(&expr.cond);
        self.inside(expr.if_token.span.start().line, |this| this.visit_block(&expr.then_branch));
        match expr.else_branch.as_ref().map(|(token, branch)| (token, &**branch)) {
            Some((_, syn::Expr::If(chained))) => self.visit_expr_if(chained),
            Some((token, branch)) => self.inside(token.span.start().line, |this| this.visit_expr(branch)),
            None => {}
        }
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        self.visit_expr(&expr.expr);
        self.inside(expr.match_token.span.start().line, |this| {
            expr.arms.iter().for_each(|arm| this.visit_arm(arm));
        });
    }

    fn visit_expr_for_loop(&mut self, expr: &'ast syn::ExprForLoop) {
        self.inside(expr.for_token.span.start().line, |this| visit::visit_expr_for_loop(this, expr));
    }

    fn visit_expr_while(&mut self, expr: &'ast syn::ExprWhile) {
        self.inside(expr.while_token.span.start().line, |this| visit::visit_expr_while(this, expr));
    }

    fn visit_expr_loop(&mut self, expr: &'ast syn::ExprLoop) {
        self.inside(expr.loop_token.span.start().line, |this| visit::visit_expr_loop(this, expr));
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        self.anew(|this| visit::visit_item(this, item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<(&'static str, usize)> {
        let source = Source::parse("crates/base/src/x.rs", text).unwrap();
        check(&source).into_iter().map(|breach| (breach.rule, breach.line)).collect()
    }

    fn function_of(lines: usize) -> String {
        format!("\n/// Doc.\n#[inline]\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_may_have_seventy_lines_and_no_more() {
        assert_eq!(rules(&function_of(70)), []);
        assert_eq!(rules(&function_of(71)), [("function-length", 4)]);
    }

    #[test]
    fn a_macro_is_as_long_as_a_function() {
        let text = format!("macro_rules! m {{\n{}}}\n", "    () => {};\n".repeat(70));
        assert_eq!(rules(&text), [("function-length", 1)]);
    }

    #[test]
    fn a_file_may_have_five_hundred_lines_and_no_more() {
        assert_eq!(rules(&"//\n".repeat(500)), []);
        assert_eq!(rules(&"//\n".repeat(501)), [("file-length", 501)]);
    }

    #[test]
    fn other_written_files_are_counted_and_generated_ones_are_not() {
        let long = "\n".repeat(501);
        let workspace = Workspace::with(&[("a.sql", &long), ("Cargo.lock", &long), ("b.py", "")]);
        assert_eq!(check_other_files(&workspace).len(), 1);
    }

    #[test]
    fn control_flow_may_nest_three_deep_and_no_deeper() {
        assert_eq!(rules("fn f() {\n for a in b {\n if c { match d { _ => e() } }\n }\n}"), []);
        assert_eq!(rules("fn f() {\n for a in b {\n if c { match d {\n _ => loop {}\n } }\n }\n}"), [("nesting", 4)]);
    }

    #[test]
    fn an_else_if_is_not_deeper_than_its_if() {
        assert_eq!(rules("fn f() { if a {} else if b {} else if c {} else if d {} else if e {} else {} }"), []);
        assert_eq!(rules("fn f() { if a {} else { if b { if c { if d {} } } } }"), [("nesting", 1)]);
    }

    #[test]
    fn a_function_inside_a_function_starts_anew() {
        assert_eq!(rules("fn f() { if a { if b { fn g() { if c { if d {} } } } } }"), []);
    }
}

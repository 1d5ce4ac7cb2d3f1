//! Which file of a crate imports which, and their circles.
//!
//! A path counts as an import of the file that declares its last name: re-exports are followed, and are no import
//! themselves. A method call names no file, so a type may be used across files that do not import each other.

use std::collections::{BTreeMap, BTreeSet};

/// A module's path from the crate's root, or a path as code has it.
type Path = Vec<String>;

/// The files of a crate as a graph of imports.
#[derive(Debug, Default)]
pub(super) struct Graph {
    modules: BTreeMap<Path, Module>,
}

#[derive(Debug, Default)]
struct Module {
    file: String,
    declared: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths outside of `use`.
    mentions: BTreeSet<Path>,
}

/// One name that a `use` brings in.
#[derive(Debug)]
struct Import {
    path: Path,
    /// The name in this module; `*` for all.
    name: String,
    is_export: bool,
}

impl Graph {
    /// Adds the file at `path`, counted from the crate's `src`.
    pub(super) fn add(&mut self, path: &str, lines: &[&str]) {
        let mut module = Module { file: path.to_owned(), ..Module::default() };
        let code: Vec<String> = lines.iter().map(|line| super::lines::code(line)).collect();
        module.declared.extend(code.iter().filter_map(|line| declared(line)).map(str::to_owned));
        let mut rest = Vec::new();
        let mut lines = code.iter();
        while let Some(line) = lines.next() {
            let Some((before, tree)) = line.split_once("use ").filter(|(before, _)| {
                let before = before.trim();
                before.is_empty() || before.starts_with("pub") && !before.contains(['{', ';'])
            }) else {
                rest.push(line.as_str());
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.contains(';') {
                let Some(line) = lines.next() else { break };
                tree.push_str(line.trim());
            }
            let is_export = before.contains("pub");
            let tree = tree.split(';').next().unwrap_or_default();
            module.imports.extend(imports(tree, &[], is_export));
        }
        module.mentions = rest.into_iter().flat_map(mentions).collect();
        let mut names: Path = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            names.pop();
        }
        self.modules.insert(names, module);
    }

    /// Returns the largest sets of files that all import each other, directly or through others, of more than
    /// `most` files, largest first.
    pub(super) fn circles(&self, most: usize) -> Vec<Vec<String>> {
        let arrows: BTreeMap<&Path, BTreeSet<&Path>> =
            self.modules.keys().map(|from| (from, self.arrows(from))).collect();
        let reaches: BTreeMap<&Path, BTreeSet<&Path>> =
            arrows.keys().map(|from| (*from, reachable(from, &arrows))).collect();
        let mut circles = BTreeSet::new();
        for (from, reached) in &reaches {
            let is_mutual = |to: &&&Path| reaches[*to].contains(*from);
            let circle: Vec<String> =
                reached.iter().filter(is_mutual).map(|to| self.modules[*to].file.clone()).collect();
            if circle.len() > most {
                circles.insert(circle);
            }
        }
        let mut circles: Vec<_> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    /// Returns the modules that the one at `from` imports from.
    fn arrows(&self, from: &Path) -> BTreeSet<&Path> {
        let module = &self.modules[from];
        let used = module.imports.iter().filter(|import| !import.is_export);
        let paths = used.map(|import| &import.path).chain(&module.mentions);
        paths.filter_map(|path| self.resolve(from, path, 0)).filter(|to| *to != from).collect()
    }

    /// Returns the module that declares what `path` means in the module at `at`.
    fn resolve(&self, at: &Path, path: &[String], depth: usize) -> Option<&Path> {
        /// Re-exports of re-exports, beyond which a name is taken for another crate's.
        const DEPTH_MAX: usize = 12;
        let (first, rest) = path.split_first().filter(|_| depth < DEPTH_MAX)?;
        let child = |of: &[String], name: &String| {
            let path = [of, std::slice::from_ref(name)].concat();
            self.modules.get_key_value(&path).map(|(path, _)| path)
        };
        let (mut module, mut rest) = match first.as_str() {
            "crate" => (self.modules.get_key_value(&Vec::new())?.0, rest),
            "self" => (at, rest),
            "super" => {
                let above = path.iter().take_while(|name| *name == "super").count();
                let outer = at.len().checked_sub(above)?;
                (self.modules.get_key_value(&at[..outer])?.0, &path[above..])
            }
            _ if child(at, first).is_some() => (at, path),
            _ => {
                let import = self.modules[at].imports.iter().find(|it| it.name == *first)?;
                let whole = [&import.path[..], rest].concat();
                return self.resolve(at, &whole, depth + 1);
            }
        };
        while let Some(next) = rest.first().and_then(|name| child(module, name)) {
            (module, rest) = (next, &rest[1..]);
        }
        let (module, _) = self.modules.get_key_value(module)?;
        let Some(name) = rest.first().filter(|name| *name != "*") else { return Some(module) };
        let Module { declared, imports, .. } = &self.modules[module];
        if declared.contains(name) {
            return Some(module);
        }
        let named = imports.iter().find(|import| import.name == *name);
        if let Some(import) = named {
            let whole = [&import.path[..], &rest[1..]].concat();
            return self.resolve(module, &whole, depth + 1);
        }
        let globs = imports.iter().filter(|import| import.name == "*");
        let mut found = globs.filter_map(|glob| {
            let whole = [&glob.path[..glob.path.len() - 1], rest].concat();
            self.resolve(module, &whole, depth + 1).filter(|found| *found != module)
        });
        Some(found.next().unwrap_or(module))
    }
}

/// Returns all that `from` reaches, and `from`.
fn reachable<'a>(
    from: &'a Path,
    arrows: &BTreeMap<&'a Path, BTreeSet<&'a Path>>,
) -> BTreeSet<&'a Path> {
    let (mut reached, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(arrows[at].iter().filter(|to| reached.insert(to)));
    }
    reached
}

/// Returns the name of the item that a line declares.
fn declared(line: &str) -> Option<&str> {
    let words = line.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_');
    let mut words = words.filter(|word| !word.is_empty()).peekable();
    while words
        .next_if(|word| {
            matches!(*word, "pub" | "crate" | "super" | "in" | "async" | "unsafe" | "extern" | "C")
        })
        .is_some()
    {}
    match words.next()? {
        "struct" | "enum" | "trait" | "fn" | "type" | "static" | "union" | "macro_rules" => {
            words.next()
        }
        "const" => match words.next()? {
            "fn" | "unsafe" => words.find(|word| *word != "fn"),
            name => Some(name),
        },
        _ => None,
    }
}

/// Expands a `use` tree.
fn imports(tree: &str, before: &[String], is_export: bool) -> Vec<Import> {
    let (path, group) = tree.split_once('{').unwrap_or((tree, ""));
    let (path, alias) = path.split_once(" as ").unwrap_or((path, ""));
    let names = path.split("::").map(str::trim).filter(|name| !name.is_empty() && *name != "self");
    let is_self_first = before.is_empty() && path.trim_start().starts_with("self::");
    let own = is_self_first.then_some("self").into_iter().chain(names).map(str::to_owned);
    let path: Path = before.iter().cloned().chain(own).collect();
    let Some((group, _)) = group.rsplit_once('}') else {
        let name =
            if alias.is_empty() { path.last().cloned() } else { Some(alias.trim().to_owned()) };
        return name
            .into_iter()
            .map(|name| Import { path: path.clone(), name, is_export })
            .collect();
    };
    let mut depth = 0;
    let members = group.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let members = members.filter(|member| !member.trim().is_empty());
    members.flat_map(|member| imports(member, &path, is_export)).collect()
}

/// Returns the paths in a line of code.
fn mentions(line: &str) -> Vec<Path> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = line.split(|c| !is_part(c)).filter(|word| word.contains("::"));
    let paths = words.map(|word| word.split("::").map(str::to_owned).collect::<Path>());
    paths.filter(|path| !path[0].is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (path, text) in files {
            graph.add(path, &text.lines().collect::<Vec<_>>());
        }
        graph
    }

    #[test]
    fn a_circle_through_a_re_export_is_found_and_the_re_export_is_none() {
        let front = "mod core;\nmod leaf;\npub(crate) use core::Core;\nstruct Front;";
        let graph = graph(&[
            ("lib.rs", "mod store;"),
            ("store/mod.rs", front),
            ("store/core.rs", "use super::leaf;\npub(crate) struct Core;\nfn f() { leaf::g() }"),
            ("store/leaf.rs", "use crate::store::{\n    Core,\n};\npub(crate) fn g() {}"),
        ]);
        assert_eq!(graph.circles(1), [["store/core.rs", "store/leaf.rs"]]);
        assert!(graph.circles(2).is_empty());
    }

    #[test]
    fn other_crates_comments_and_methods_are_no_imports() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;"),
            (
                "a.rs",
                "use std::fmt::{self, Debug};\npub struct A;\n// crate::b::B\nfn f() { b.a() }",
            ),
            ("b.rs", "use crate::a::A as Other;\npub struct B;\nfn f() { Other::new() }"),
        ]);
        assert!(graph.circles(1).is_empty());
    }

    #[test]
    fn a_parent_that_uses_its_children_and_is_used_by_them_is_a_circle() {
        let graph = graph(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b;\nmod c;\nconst LIMIT: u8 = 1;\nfn f() { b::f(); c::g() }"),
            ("a/b.rs", "use super::*;\npub(super) fn f() {}"),
            ("a/c.rs", "pub(super) const fn g() -> u8 {\n    super::LIMIT\n}"),
        ]);
        assert_eq!(graph.circles(2), [["a/mod.rs", "a/b.rs", "a/c.rs"]]);
    }
}

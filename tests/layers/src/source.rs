//! Reads the modules of a crate and the paths that they import.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::token::{Token, tokens};

/// The names from the root of the crate to a module; empty for the root.
pub(crate) type Module = Vec<String>;

/// A path that a module mentions.
pub(crate) struct Import {
    pub(crate) from: Module,
    path: Vec<String>,
    /// Relative to the sources' folder.
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
}

/// What a crate compiles without its tests.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) modules: BTreeSet<Module>,
    pub(crate) imports: Vec<Import>,
    /// For each module, the names that a `use` brings into it, and their paths.
    names: BTreeMap<(Module, String), Vec<String>>,
}

impl Sources {
    /// Reads `lib.rs` in `src`, and the files of all modules that it declares.
    pub(crate) fn read(src: &Path) -> Self {
        let mut sources = Self::default();
        sources.file(src, Path::new("lib.rs"), &Vec::new(), Path::new(""));
        sources
    }

    /// Reads one file. `children` is the folder of its child modules.
    fn file(&mut self, src: &Path, file: &Path, module: &Module, children: &Path) {
        let text = fs::read_to_string(src.join(file))
            .unwrap_or_else(|e| panic!("cannot read {}: {e}", src.join(file).display()));
        let mut parser = Parser { tokens: tokens(&text), at: 0, file, sources: self, declared: Vec::new() };
        parser.module(module, children);
        for (module, folder) in parser.declared {
            let name = module.last().expect("a declared module has a name");
            let flat = folder.join(format!("{name}.rs"));
            let file = if src.join(&flat).exists() { flat } else { folder.join(name).join("mod.rs") };
            let children = folder.join(name);
            self.file(src, &file, &module, &children);
        }
    }

    /// Returns the module that defines what an import names. `None` if that is another crate.
    pub(crate) fn target(&self, import: &Import) -> Option<Module> {
        self.resolve(&import.from, &import.path, 0)
    }

    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        const DEEPEST: usize = 16;
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => from.split_last()?.1.to_vec(),
            "::" => return None,
            _ => {
                rest = path;
                from.clone()
            }
        };
        let relative = rest.len() == path.len();
        for (n, name) in rest.iter().enumerate() {
            let mut child = at.clone();
            child.push(name.clone());
            match self.names.get(&(at.clone(), name.clone())) {
                _ if name == "super" => drop(at.pop()),
                _ if name == "self" => {}
                _ if self.modules.contains(&child) => at = child,
                Some(used) if depth < DEEPEST => match self.resolve(&at, used, depth + 1) {
                    Some(target) => at = target,
                    None if relative && n == 0 => return None,
                    None => break,
                },
                _ if relative && n == 0 => return None,
                _ => break,
            }
        }
        Some(at)
    }
}

struct Parser<'a> {
    tokens: Vec<Token>,
    at: usize,
    file: &'a Path,
    sources: &'a mut Sources,
    /// Modules with files of their own, and the folders of these.
    declared: Vec<(Module, PathBuf)>,
}

impl Parser<'_> {
    /// Reads the items of `module`, to the end of the file or past the brace that closes it.
    fn module(&mut self, module: &Module, children: &Path) {
        self.sources.modules.insert(module.clone());
        let mut depth = 0;
        loop {
            match self.text(0) {
                "" => return,
                "#" => self.attribute(),
                "{" => {
                    depth += 1;
                    self.at += 1;
                }
                "}" if depth == 0 => {
                    self.at += 1;
                    return;
                }
                "}" => {
                    depth -= 1;
                    self.at += 1;
                }
                "mod" if self.text(1) == "tests" => self.skip_item(),
                "mod" if matches!(self.text(2), ";" | "{") => {
                    let name = self.text(1).to_owned();
                    let mut child = module.clone();
                    child.push(name.clone());
                    let inline = self.text(2) == "{";
                    self.at += 3;
                    if inline {
                        self.module(&child, &children.join(name));
                    } else {
                        self.declared.push((child, children.to_owned()));
                    }
                }
                "use" if self.text(1) != "<" => {
                    self.at += 1;
                    self.tree(module, Vec::new());
                }
                "crate" | "super" | "self" if self.text(1) == "::" && !self.in_visibility() => self.path(module),
                _ => self.at += 1,
            }
        }
    }

    /// Returns the token `ahead` of the next one. Empty past the end.
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| &token.text)
    }

    /// Returns `true` if the next token is the path in `pub(in path)`.
    fn in_visibility(&self) -> bool {
        self.at >= 2 && self.tokens[self.at - 1].text == "in" && self.tokens[self.at - 2].text == "("
    }

    /// Skips an attribute, and the item under it if only tests compile that.
    fn attribute(&mut self) {
        let begin = self.at;
        self.at += 1;
        let inner = self.text(0) == "!";
        self.at += usize::from(inner);
        if self.text(0) != "[" {
            return;
        }
        self.skip_group();
        let words: Vec<&str> = self.tokens[begin..self.at].iter().map(|token| token.text.as_str()).collect();
        let test = match words.get(2) {
            Some(&"cfg") => words.contains(&"test") && !words.contains(&"not"),
            Some(&"test") => true,
            _ => false,
        };
        if test && !inner {
            self.skip_item();
        }
    }

    /// Skips to past the item's `;` or closing brace.
    fn skip_item(&mut self) {
        loop {
            match self.text(0) {
                "" | "}" | ")" | "]" => return,
                ";" => {
                    self.at += 1;
                    return;
                }
                "{" => {
                    self.skip_group();
                    return;
                }
                "(" | "[" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    /// Skips from an opening bracket to past its closing one.
    fn skip_group(&mut self) {
        let mut depth = 0;
        loop {
            match self.text(0) {
                "" => return,
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Reads a path outside of a `use`.
    fn path(&mut self, module: &Module) {
        let begin = self.at;
        let mut path = vec![self.text(0).to_owned()];
        self.at += 1;
        while self.text(0) == "::" && self.text(1).starts_with(|c: char| c.is_alphabetic() || c == '_') {
            path.push(self.text(1).to_owned());
            self.at += 2;
        }
        self.import(module, path, begin);
    }

    /// Reads one branch of a `use`, up to its `,`, `}` or `;`.
    fn tree(&mut self, module: &Module, mut path: Vec<String>) {
        loop {
            let begin = self.at;
            match self.text(0) {
                "" | "," | "}" | ";" => return,
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(0), "" | "}") {
                        self.tree(module, path.clone());
                        self.at += usize::from(self.text(0) == ",");
                    }
                    self.at += 1;
                    return;
                }
                "::" => {
                    if path.is_empty() {
                        path.push("::".to_owned());
                    }
                    self.at += 1;
                }
                "*" => {
                    self.at += 1;
                    self.import(module, path, begin);
                    return;
                }
                segment => {
                    if segment != "self" || path.is_empty() {
                        path.push(segment.to_owned());
                    }
                    self.at += 1;
                    if self.text(0) == "::" {
                        continue;
                    }
                    let mut name = path.last().cloned().unwrap_or_default();
                    if self.text(0) == "as" {
                        name = self.text(1).to_owned();
                        self.at += 2;
                    }
                    self.sources.names.insert((module.clone(), name), path.clone());
                    self.import(module, path, begin);
                    return;
                }
            }
        }
    }

    fn import(&mut self, module: &Module, path: Vec<String>, at: usize) {
        let line = self.tokens[at].line;
        self.sources.imports.push(Import { from: module.clone(), path, file: self.file.to_owned(), line });
    }
}

//! Links in the pages lead to files and headings, and paths of sources that pages name exist.

use std::path::{Path, PathBuf};

use super::{files, quoted, read, root};

/// Returns every page of the repository.
fn pages() -> Vec<PathBuf> {
    files(&root(), "md")
}

/// Returns the lines of a page outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut wrong = Vec::new();
    let mut links = 0;
    for page in pages() {
        for target in prose(&read(&page)).flat_map(targets) {
            links += 1;
            if let Err(why) = follow(&page, &target) {
                wrong.push(format!("{}: {target}: {why}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(links > 60, "{links} links were read");
}

/// Returns the targets of the links in a line: `[text](target)`.
fn targets(line: &str) -> Vec<String> {
    let without_code: String = line.split('`').step_by(2).collect::<Vec<_>>().join("x");
    let links = without_code.split("](").skip(1);
    links.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

fn follow(page: &Path, target: &str) -> Result<(), String> {
    if target.contains("://") {
        let is_web = target.starts_with("https://") && target.split('/').nth(2).is_some_and(|host| host.contains('.'));
        return if is_web { Ok(()) } else { Err("is not an https address".to_owned()) };
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let path = if file.is_empty() { page.to_owned() } else { page.parent().unwrap_or(page).join(file) };
    if !path.exists() {
        return Err("does not exist".to_owned());
    }
    let Some(heading) = heading else { return Ok(()) };
    let text = read(&path);
    let mut headings = prose(&text).filter(|line| line.starts_with('#')).map(anchor);
    if headings.any(|anchor| anchor == heading) { Ok(()) } else { Err("has no such heading".to_owned()) }
}

/// Returns a heading as links name it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
    kept.map(|char| if char == ' ' { '-' } else { char }).collect()
}

#[test]
fn every_source_that_a_page_names_exists() {
    let mut wrong = Vec::new();
    for page in pages() {
        for line in prose(&read(&page)) {
            // A how-to says which files are to come.
            let line = line.split_once("` (new)").map_or(line, |(_, rest)| rest);
            for name in quoted(line).into_iter().filter(|name| is_source(name)) {
                if !root().join(name).exists() && !page.with_file_name(name).exists() {
                    wrong.push(format!("{}: {name} does not exist", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `true` if a name is a path of a source, from the root of the repository.
fn is_source(name: &str) -> bool {
    const ROOTS: [&str; 8] = ["host/", "plugin-sdk/", "plugins/", "sdks/", "templates/", "tests/", "wit/", "docs/"];
    let is_below = ROOTS.iter().any(|root| name.starts_with(root));
    is_below && !name.contains(['*', ' ', '<', '{', '$']) && !name.chars().any(char::is_uppercase)
        || name == "README.md"
}

#[test]
fn the_plugin_in_the_readme_is_that_of_the_example() {
    let readme = read(&root().join("README.md"));
    let example = read(&root().join("plugins/myapple/src/lib.rs"));
    let code =
        readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("README shows a plugin");
    for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
        assert!(example.contains(line), "plugins/myapple/src/lib.rs has no line: {line}");
    }
}

#[test]
fn pages_are_as_short_as_they_promise() {
    for (page, most) in [("README.md", 100), ("CHANGELOG.md", 30), ("docs/architecture.md", 150)] {
        let lines = read(&root().join(page)).lines().count();
        assert!(lines <= most, "{page} has {lines} lines; at most {most} are meant");
    }
}

#[test]
fn every_page_is_in_the_summary_of_the_book() {
    let summary = read(&root().join("docs/SUMMARY.md"));
    for page in files(&root().join("docs"), "md") {
        let name = page.strip_prefix(root().join("docs")).expect("it is below docs").display().to_string();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "docs/SUMMARY.md lacks {name}");
    }
}

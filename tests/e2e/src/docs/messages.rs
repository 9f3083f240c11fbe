//! The messages that the page on troubleshooting explains are those of the host.

use super::{cells, quoted, read, root, sources};

/// Columns of messages that the host writes.
const COLUMNS: [&str; 2] = ["message", "line"];

#[test]
fn every_message_on_the_page_is_one_that_the_host_writes() {
    // A long message goes on in the next line of the source.
    let text: Vec<String> =
        sources(&["host/src", "host/core/src"]).split("\\\n").map(|part| part.trim_start().to_owned()).collect();
    let text = text.concat();
    let page = read(&root().join("docs/troubleshooting.md"));
    let (mut column, mut wrong, mut messages) = (None, Vec::new(), 0);
    for line in page.lines() {
        if !line.starts_with('|') {
            column = None;
            continue;
        }
        let row = cells(line);
        let Some(column) = column else {
            column = row.iter().position(|cell| COLUMNS.contains(cell));
            continue;
        };
        for message in quoted(row.get::<usize>(column).copied().unwrap_or_default()) {
            messages += 1;
            for part in parts(message).into_iter().filter(|part| !text.contains(part.as_str())) {
                wrong.push(format!("{message}: no source has {part:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(messages > 40, "{messages} messages were read");
}

/// Returns the constant parts of a message: what stands between `…` and words in capitals, such as `NAME`.
fn parts(message: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for word in message.split(' ') {
        let letters: String = word.chars().filter(|char| char.is_alphabetic()).collect();
        let is_value = word.contains('…')
            || !letters.is_empty() && letters.chars().all(char::is_uppercase) && letters != "API"
            || word.starts_with(|first: char| first.is_ascii_digit())
            || word.contains("NAME.");
        if is_value {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(if part.is_empty() { "" } else { " " });
            part.push_str(word);
        }
    }
    let parts = parts.into_iter().map(|part| part.trim_end_matches(':').trim().to_owned());
    parts.filter(|part| part.len() >= 8).collect()
}

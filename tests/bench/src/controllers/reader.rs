//! A thread that reads the same watch from the same wire and does nothing else. It shows how long the machine takes to
//! deliver an event and to wake the reader.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::mpsc::Sender,
    thread,
};

use anyhow::{Context, Result};
use memchr::memmem;

use super::{MARK, Seen, now, obey};

pub(crate) const NAME: &str = "controller-reader";

/// Runs the reader until its input ends.
pub(crate) fn run() -> Result<()> {
    obey(start)
}

fn start(url: &str, seen: Sender<Seen>) -> Result<()> {
    let server = url.strip_prefix("http://").context("not the address of a server without TLS")?;
    let mut stream = TcpStream::connect(server).context("cannot reach the server")?;
    let request = format!("GET /api/v1/configmaps?watch=true HTTP/1.1\r\nHost: {server}\r\n\r\n");
    stream.write_all(request.as_bytes()).context("cannot ask the server")?;
    thread::spawn(move || {
        let mut stream = BufReader::with_capacity(64 << 10, stream);
        let mut line = Vec::new();
        // Ends the wait of the receiver.
        while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
            let at = now();
            if let Some(mark) = mark(&line)
                && seen.send((at, mark)).is_err()
            {
                break;
            }
            line.clear();
        }
    });
    Ok(())
}

/// The mark in a line of the watch.
fn mark(line: &[u8]) -> Option<String> {
    let before = format!("\"{MARK}\":\"");
    let start = memmem::find(line, before.as_bytes())? + before.len();
    let end = start + memchr::memchr(b'"', &line[start..])?;
    String::from_utf8(line[start..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_beside_the_names_of_fields() {
        let line = br#"{"object":{"metadata":{"annotations":{"guests.example.com/mark":"mark-7"},"managedFields":[{"f:guests.example.com/mark":{}}]}}}"#;
        assert_eq!(mark(line).as_deref(), Some("mark-7"));
        assert_eq!(mark(br#"{"f:guests.example.com/mark":{}}"#), None);
        assert_eq!(mark(br#""guests.example.com/mark":"cut"#), None);
    }
}

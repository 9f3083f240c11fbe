//! Splits Rust source into words and punctuation, without comments and literals.

use std::iter::Peekable;

/// A word, or one character of punctuation; `::` is one token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Counts from 1.
    pub(crate) line: usize,
}

/// Returns the tokens of `source`. Literals and lifetimes are left out.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let mut scan = Scan { rest: source.chars().peekable(), line: 1 };
    let mut tokens = Vec::new();
    while let Some(c) = scan.next() {
        let line = scan.line;
        match c {
            '/' if scan.eat('/') => scan.skip_until('\n'),
            '/' if scan.eat('*') => scan.block_comment(),
            '"' => scan.string(),
            '\'' => scan.quote(),
            ':' if scan.eat(':') => tokens.push(Token { text: "::".to_owned(), line }),
            c if c.is_alphanumeric() || c == '_' => {
                let word = scan.word(c);
                match (word.as_str(), scan.rest.peek()) {
                    ("b" | "c", Some('"')) => {}
                    ("b", Some('\'')) => {}
                    ("r" | "br" | "cr", Some('"' | '#')) => {
                        if let Some(identifier) = scan.raw() {
                            tokens.push(Token { text: identifier, line });
                        }
                    }
                    _ => tokens.push(Token { text: word, line }),
                }
            }
            c if c.is_whitespace() => {}
            c => tokens.push(Token { text: c.to_string(), line }),
        }
    }
    tokens
}

struct Scan<I: Iterator<Item = char>> {
    rest: Peekable<I>,
    line: usize,
}

impl<I: Iterator<Item = char>> Scan<I> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// Returns `true` if the next character was `expected`, and consumes it.
    fn eat(&mut self, expected: char) -> bool {
        let there = self.rest.peek() == Some(&expected);
        if there {
            self.next();
        }
        there
    }

    fn skip_until(&mut self, last: char) {
        while self.next().is_some_and(|c| c != last) {}
    }

    fn word(&mut self, first: char) -> String {
        let mut word = String::from(first);
        while let Some(&c) = self.rest.peek()
            && (c.is_alphanumeric() || c == '_')
        {
            word.push(c);
            self.next();
        }
        word
    }

    fn block_comment(&mut self) {
        let mut depth = 1;
        while depth > 0
            && let Some(c) = self.next()
        {
            match c {
                '*' if self.eat('/') => depth -= 1,
                '/' if self.eat('*') => depth += 1,
                _ => {}
            }
        }
    }

    fn string(&mut self) {
        while let Some(c) = self.next() {
            match c {
                '"' => return,
                '\\' => drop(self.next()),
                _ => {}
            }
        }
    }

    /// Skips a character or a lifetime, after its quote.
    fn quote(&mut self) {
        match self.next() {
            Some('\\') => {
                self.next();
                self.skip_until('\'');
            }
            Some(c) if c.is_alphanumeric() || c == '_' => {
                self.word(c);
                self.eat('\'');
            }
            _ => drop(self.eat('\'')),
        }
    }

    /// Skips a raw string, after its prefix. Returns the word if it was a raw identifier instead.
    fn raw(&mut self) -> Option<String> {
        let mut hashes = 0;
        while self.eat('#') {
            hashes += 1;
        }
        if !self.eat('"') {
            return self.next().map(|first| self.word(first));
        }
        loop {
            self.skip_until('"');
            let mut closing = 0;
            while closing < hashes && self.eat('#') {
                closing += 1;
            }
            if closing == hashes || self.rest.peek().is_none() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_left_out() {
        let source = r####"a /* use crate::x; /* in it */ */ "use \" crate" r#"use "crate"# b"x" b'y' '\'' '{' c // use super::d
            e<'life>"####;
        assert_eq!(words(source), ["a", "c", "e", "<", ">"]);
    }

    #[test]
    fn paths_and_raw_identifiers_are_words() {
        assert_eq!(words("crate::r#type::{self, B}"), ["crate", "::", "type", "::", "{", "self", ",", "B", "}"]);
    }

    #[test]
    fn lines_count_through_literals() {
        let last = tokens("\"one\ntwo\"\n/* three\n*/ four").pop();
        assert_eq!(last, Some(Token { text: "four".to_owned(), line: 4 }));
    }
}

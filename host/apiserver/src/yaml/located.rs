//! YAML values with their places in the text, for messages and for edits that keep comments.
//!
//! The values are those of [`documents`](super::documents).

use std::{borrow::Cow, collections::HashMap, ops::Range};

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput};
use serde_json::{Map, Value};

use super::{Error, MAX_DEPTH, MAX_EXPANDED, Node, check_escapes, line_breaks, scalar};

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// The line in which the value begins, from 1.
    pub line: usize,
    /// The column in which the value begins, from 0.
    pub column: usize,
    /// The bytes of the value, without its tag and anchor.
    pub range: Range<usize>,
    /// `true` if the text belongs to an anchor elsewhere, so that an edit would change other values too.
    pub is_shared: bool,
    /// The value.
    pub content: Content,
}

/// What a [`Located`] holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Neither a list nor a map.
    Scalar(Value),
    /// A list.
    List(Vec<Located>),
    /// A map. No name comes twice.
    Map(Vec<Member>),
}

/// A member of a map.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The key.
    pub name: String,
    /// The line of the key, from 1.
    pub line: usize,
    /// The bytes of the key.
    pub range: Range<usize>,
    /// The value.
    pub value: Located,
}

impl Located {
    /// Returns the value without its place.
    #[must_use]
    pub fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Located::value).collect(),
            Content::Map(members) => {
                let members = members.iter().map(|member| (member.name.clone(), member.value.value()));
                Value::Object(members.collect::<Map<_, _>>())
            }
        }
    }

    /// Returns a member of a map.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Located> {
        self.members().iter().find(|member| member.name == name).map(|member| &member.value)
    }

    /// Returns the members of a map. Other values have none.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        if let Content::Map(members) = &self.content { members } else { &[] }
    }

    /// Returns the items of a list. Other values have none.
    #[must_use]
    pub fn items(&self) -> &[Located] {
        if let Content::List(items) = &self.content { items } else { &[] }
    }

    fn share(&mut self) {
        self.is_shared = true;
        match &mut self.content {
            Content::Scalar(_) => {}
            Content::List(items) => items.iter_mut().for_each(Located::share),
            Content::Map(members) => members.iter_mut().for_each(|member| member.value.share()),
        }
    }

    fn count(&self) -> usize {
        1 + match &self.content {
            Content::Scalar(_) => 0,
            Content::List(items) => items.iter().map(Located::count).sum(),
            Content::Map(members) => members.iter().map(|member| member.value.count()).sum(),
        }
    }
}

/// Reads all documents. Documents without content are left out.
///
/// # Errors
/// The first error in the text: invalid YAML, a name that comes twice, or a line break that only YAML 1.1 has.
pub fn documents(text: &str) -> Result<Vec<Located>, Error> {
    if text.starts_with('\u{feff}') || matches!(line_breaks(text)?, Cow::Owned(_)) {
        return Err(Error(
            "a byte order mark and the line breaks U+0085, U+2028 and U+2029 are not allowed".to_owned(),
        ));
    }
    let mut reader = Reader::new(text);
    let mut all = Vec::new();
    loop {
        match reader.next()? {
            (Event::DocumentStart(..), _) => {
                reader.anchors.clear();
                reader.room = MAX_EXPANDED;
                let (event, span) = reader.next()?;
                let found = reader.node(event, &span, 0)?;
                if found.content != Content::Scalar(Value::Null) {
                    all.push(found);
                }
            }
            (Event::StreamEnd, _) => return Ok(all),
            _ => {}
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Located>,
    /// Nodes that anchors and aliases may still add.
    room: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let options = granit_parser::options! {
            emit_comments: false,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
        };
        let parser = Parser::new_from_str_with_options(text, options);
        Self { text, parser, anchors: HashMap::new(), room: MAX_EXPANDED }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Error> {
        match self.parser.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(Error(error.to_string())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Located, Error> {
        if depth > MAX_DEPTH {
            return Err(Error::at(span, format!("the text nests deeper than {MAX_DEPTH} levels")));
        }
        let range = span.byte_range().unwrap_or_default();
        let mut found =
            Located { line: span.start.line(), column: span.start.col(), range, is_shared: false, content: NULL };
        let anchor = match event {
            Event::Scalar(text, style, anchor, tag) => {
                if style == ScalarStyle::DoubleQuoted {
                    check_escapes(span.slice(self.text).unwrap_or_default()).map_err(|why| Error::at(span, why))?;
                }
                if matches!(style, ScalarStyle::Literal | ScalarStyle::Folded) {
                    self.include_header(&mut found);
                }
                let node = scalar(text, style, tag.as_deref()).map_err(|why| Error::at(span, why))?;
                found.content = Content::Scalar(node.value().map_err(|why| Error::at(span, why))?);
                anchor
            }
            Event::SequenceStart(_, anchor, _) => {
                self.sequence(&mut found, depth)?;
                anchor
            }
            Event::MappingStart(_, anchor, _) => {
                self.mapping(&mut found, depth)?;
                anchor
            }
            Event::Alias(anchor) => {
                let of = self.anchors.get(&anchor);
                let mut of = of.ok_or_else(|| Error::at(span, "an anchor's value contains itself"))?.clone();
                of.share();
                found.content = of.content;
                self.copies(&found, span)?;
                0
            }
            _ => return Err(Error::at(span, "a value is missing")),
        };
        if anchor > 0 {
            self.copies(&found, span)?;
            self.anchors.insert(anchor, found.clone());
        }
        Ok(found)
    }

    /// Lets a block scalar begin with its `|` or `>`, and end with its last line. The parser lets it begin with its
    /// text, on a later line, and includes the indentation of the line after it.
    fn include_header(&self, found: &mut Located) {
        let text = self.text.get(found.range.clone()).unwrap_or_default().trim_end_matches(' ');
        if text.ends_with('\n') {
            found.range.end = found.range.start + text.len();
        }
        let before = self.text.get(..found.range.start).unwrap_or_default().trim_end();
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        let header = before.get(line..).unwrap_or_default();
        let header = header.split_once(" #").map_or(header, |(header, _)| header).trim_end();
        let header = header.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'));
        if let Some(indicator) = header.strip_suffix(['|', '>']) {
            found.range.start = line + indicator.len();
            found.line = before.matches('\n').count() + 1;
            found.column = indicator.chars().count();
        }
    }

    /// Counts a copy of a node against the bound for aliases and anchors.
    fn copies(&mut self, node: &Located, span: &Span) -> Result<(), Error> {
        let room = self.room.checked_sub(node.count());
        self.room = room.ok_or_else(|| Error::at(span, "document contains excessive aliasing"))?;
        Ok(())
    }

    /// `true` if the collection is written with brackets.
    fn is_flow(&self, collection: &Located) -> bool {
        matches!(self.text.as_bytes().get(collection.range.start), Some(b'[' | b'{'))
    }

    fn sequence(&mut self, into: &mut Located, depth: usize) -> Result<(), Error> {
        let is_flow = self.is_flow(into);
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                if is_flow {
                    into.range.end = span.byte_range().unwrap_or_default().end;
                }
                break;
            }
            items.push(self.node(event, &span, depth + 1)?);
        }
        if !is_flow && let (Some(first), Some(last)) = (items.first(), items.last()) {
            let before = self.text.get(..first.range.start).unwrap_or_default();
            let start = before.rfind('-').unwrap_or(first.range.start);
            into.range = start..last.range.end;
            let line = before.get(..start).and_then(|text| text.rfind('\n')).map_or(0, |at| at + 1);
            into.column = before.get(line..start).unwrap_or_default().chars().count();
        }
        into.content = Content::List(items);
        Ok(())
    }

    fn mapping(&mut self, into: &mut Located, depth: usize) -> Result<(), Error> {
        let is_flow = self.is_flow(into);
        let (mut members, mut merged): (Vec<Member>, Vec<Member>) = (Vec::new(), Vec::new());
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                if is_flow {
                    into.range.end = span.byte_range().unwrap_or_default().end;
                }
                break;
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<");
            let key = match event {
                Event::Scalar(text, style, _, tag) => {
                    scalar(text, style, tag.as_deref()).and_then(Node::key).or_else(|why| match is_merge {
                        true => Ok("<<".to_owned()),
                        false => Err(Error::at(&span, why)),
                    })?
                }
                _ => return Err(Error::at(&span, "a key must be a text")),
            };
            let (event, of) = self.next()?;
            let value = self.node(event, &of, depth + 1)?;
            if is_merge {
                let maps = if value.items().is_empty() { std::slice::from_ref(&value) } else { value.items() };
                merged.extend(maps.iter().flat_map(|map| map.members().iter().cloned()));
                continue;
            }
            if members.iter().any(|member| member.name == key) {
                return Err(Error::at(&span, format!("{key} is given twice; remove one of them")));
            }
            let range = span.byte_range().unwrap_or_default();
            members.push(Member { name: key, line: span.start.line(), range, value });
        }
        if !is_flow && let (Some(first), Some(last)) = (members.first(), members.last()) {
            into.range = first.range.start..last.value.range.end.max(last.range.end);
        }
        for member in merged {
            if members.iter().all(|own| own.name != member.name) {
                members.push(member);
            }
        }
        into.content = Content::Map(members);
        Ok(())
    }
}

const NULL: Content = Content::Scalar(Value::Null);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(text: &str) -> Located {
        documents(text).expect("it is YAML").pop().expect("a document")
    }

    #[test]
    fn values_have_their_text_and_their_line() {
        let text = "a: 0644 # mode\nb:\n- x\n- {c: [1, 2], d: \"e\"}\nf:\n  g: |\n    text\n  h:\n";
        let found = one(text);
        assert_eq!(
            found.value(),
            json!({ "a": 420, "b": ["x", { "c": [1, 2], "d": "e" }], "f": { "g": "text\n", "h": null } })
        );
        let piece = |located: &Located| text[located.range.clone()].to_owned();
        let at = |name: &str| found.get(name).expect("a member");
        assert_eq!(piece(at("a")), "0644");
        assert_eq!((piece(at("b")), at("b").column), ("- x\n- {c: [1, 2], d: \"e\"}".to_owned(), 0));
        let map = &at("b").items()[1];
        assert_eq!((piece(map), map.line), ("{c: [1, 2], d: \"e\"}".to_owned(), 4));
        assert_eq!(piece(map.get("c").expect("c")), "[1, 2]");
        assert_eq!(piece(map.get("d").expect("d")), "\"e\"");
        let g = at("f").get("g").expect("g");
        assert_eq!((at("f").line, g.line, piece(g)), (6, 6, "|\n    text\n".to_owned()));
    }

    #[test]
    fn shared_text_is_marked_and_a_twice_given_name_is_an_error() {
        let found = one("a: &a {x: 1}\nb: *a\nc: {<<: *a, z: 2}\n");
        assert_eq!(found.value(), json!({ "a": { "x": 1 }, "b": { "x": 1 }, "c": { "z": 2, "x": 1 } }));
        let shared = |name: &str| found.get(name).and_then(|map| map.get("x")).map(|x| x.is_shared);
        assert_eq!([shared("a"), shared("b"), shared("c")], [Some(false), Some(true), Some(true)]);
        let twice = documents("a: 1\nb: 2\na: 3\n").expect_err("a is there twice");
        assert_eq!(twice.to_string(), "line 3: a is given twice; remove one of them");
    }
}

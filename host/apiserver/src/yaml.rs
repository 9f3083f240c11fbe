//! Reads YAML like Kubernetes: YAML 1.1 in the dialect of go-yaml v2, converted to JSON like sigs.k8s.io/yaml.
//!
//! The parser (`granit-parser`) reads YAML 1.2. This module handles the differences:
//!
//! | text | value |
//! |---|---|
//! | `0644`, `-0644`, `0o644`, `0b101`, `1_000` | numbers: 420, -420, 420, 5, 1000 |
//! | `yes`, `On`, `n`, …; `yES`, `oFF` | booleans; strings |
//! | `1e400` | a string, because it is out of a float's range |
//! | a key `y`, `1`, `1.5` | the names `true`, `1`, `1.5` |
//! | a duplicate key | the last one counts; the name is reported |
//! | `!!null x` | rejected |
//! | U+0085, U+2028, U+2029 | line breaks, also inside quotes |
//! | U+007F–U+009F without U+0085, U+FFFE, U+FFFF | rejected |
//! | `\/`, `\ud83d` in quotes; a key of more than 1,024 characters | rejected |

pub mod located;

use std::{borrow::Cow, collections::HashMap};

use base64::Engine as _;
use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::{Map, Number, Value};

/// Upper bound for nesting. kube-apiserver accepts 10,000 levels, but here each level costs stack in every step of a
/// request.
const MAX_DEPTH: usize = 300;

/// Upper bound for nodes that anchors and aliases add to a document, so that a few lines cannot fill the memory.
/// go-yaml has a bound of the same size.
const MAX_EXPANDED: usize = 400_000;

/// Longest key in characters as written, including quotes. go-yaml looks no further for its `:`.
const MAX_KEY: usize = 1024;

/// One document.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The document as JSON.
    pub value: Value,
    /// Paths of duplicate keys. The last one counts.
    pub duplicates: Vec<String>,
}

/// The error and its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    fn at(span: &Span, why: impl Into<String>) -> Self {
        Error(format!("line {}: {}", span.start.line(), why.into()))
    }
}

/// Reads the first document and ignores the rest, as kube-apiserver does. Without a document, the value is null.
///
/// # Errors
/// The first error in the document.
pub fn first(text: &str) -> Result<Document, Error> {
    let text = line_breaks(text)?;
    let first = Reader::new(&text, Dialect::Yaml).document()?;
    Ok(first.unwrap_or(Document { value: Value::Null, duplicates: Vec::new() }))
}

/// Reads all documents up to the first error. Documents without content are null.
pub fn documents(text: &str) -> (Vec<Document>, Option<Error>) {
    let mut documents = Vec::new();
    let text = match line_breaks(text) {
        Ok(text) => text,
        Err(error) => return (documents, Some(error)),
    };
    let mut reader = Reader::new(&text, Dialect::Yaml);
    loop {
        match reader.document() {
            Ok(Some(document)) => documents.push(document),
            Ok(None) => return (documents, None),
            Err(error) => return (documents, Some(error)),
        }
    }
}

/// Reads JSON that is deeper than `serde_json` allows.
pub(crate) fn deep_json(text: &str) -> Result<Document, Error> {
    let document = Reader::new(text, Dialect::Json).document()?;
    document.ok_or_else(|| Error("there is no value".to_owned()))
}

/// `true` if JSON means the same as YAML.
pub(crate) fn is_same_as_json(json: &str) -> bool {
    let bytes = json.as_bytes();
    if bytes.first() != Some(&b'{') {
        return false;
    }
    let (mut at, mut quote) = (0, None);
    while let Some(byte) = bytes.get(at) {
        let next = |more: usize| bytes.get(at + more).copied().unwrap_or_default();
        match byte {
            0x7f => return false,
            0xc2 if next(1) < 0xa0 => return false,
            0xe2 if next(1) == 0x80 && matches!(next(2), 0xa8 | 0xa9) => return false,
            0xef if next(1) == 0xbf && next(2) > 0xbd => return false,
            b'\\' if next(1) == b'/' || (next(1) == b'u' && matches!(next(2), b'd' | b'D')) => return false,
            b'\\' => at += 1,
            b'"' => match quote.take() {
                None => quote = Some(at),
                Some(start) if at - start < MAX_KEY => {}
                Some(_) if json.get(at + 1..).is_some_and(|rest| rest.trim_start().starts_with(':')) => return false,
                Some(_) => {}
            },
            _ => {}
        }
        at += 1;
    }
    true
}

/// Converts YAML 1.1's line breaks to those of YAML 1.2, and rejects characters that YAML 1.1 does not allow.
fn line_breaks(text: &str) -> Result<Cow<'_, str>, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let refused = |c: char| {
        matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}'..='\u{84}' | '\u{86}'..='\u{9f}')
            || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    if text.contains(refused) {
        return Err(Error("control characters are not allowed".to_owned()));
    }
    if !text.contains(['\u{85}', '\u{2028}', '\u{2029}']) {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    let (mut column, mut last, mut after_break) = (0, '\n', false);
    // The surrounding quote, and the column of its beginning.
    let mut quoted: Option<(char, usize)> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        column = if matches!(c, '\n' | '\u{85}') { 0 } else { column + 1 };
        match c {
            '\u{85}' => {
                out.push('\n');
                // YAML 1.1 continues quoted text in any column, but YAML 1.2 requires indentation. Blanks there are
                // dropped.
                out.extend(quoted.iter().flat_map(|(_, column)| std::iter::repeat_n(' ', *column)));
            }
            // Folding keeps these characters and drops blanks beside them.
            '\u{2028}' | '\u{2029}' => {
                out.truncate(out.trim_end_matches([' ', '\t']).len());
                out.push(c);
                after_break = true;
                continue;
            }
            ' ' | '\t' if after_break => continue,
            '\\' if matches!(quoted, Some(('"', _))) => {
                out.push(c);
                out.extend(chars.next());
            }
            '"' | '\'' => {
                match quoted {
                    Some((quote, _)) if quote == c => quoted = None,
                    None if matches!(last, ':' | ',' | '[' | '{' | '-' | '?' | '\n' | '\u{85}') => {
                        quoted = Some((c, column));
                    }
                    // Two single quotes mean one, so the text continues.
                    None if last == c && c == '\'' => quoted = Some((c, column)),
                    _ => {}
                }
                out.push(c);
            }
            c => out.push(c),
        }
        after_break = false;
        if !matches!(c, ' ' | '\t') {
            last = c;
        }
    }
    Ok(Cow::Owned(out))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Yaml,
    Json,
}

/// A value that may still become a key.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Null,
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    /// A plain `<<`, which merges if it is a key.
    Merge,
    Collection(Value),
}

impl Node {
    /// Returns go-yaml's tag of the node.
    fn tag(&self) -> &'static str {
        match self {
            Node::Null => "null",
            Node::Bool(_) => "bool",
            Node::Int(_) | Node::Unsigned(_) => "int",
            Node::Float(_) => "float",
            Node::Text(_) | Node::Collection(_) => "str",
            Node::Merge => "merge",
        }
    }

    fn value(self) -> Result<Value, String> {
        Ok(match self {
            Node::Null => Value::Null,
            Node::Bool(value) => value.into(),
            Node::Int(value) => value.into(),
            Node::Unsigned(value) => value.into(),
            Node::Float(value) => number(value)?.into(),
            Node::Text(value) => value.into(),
            Node::Merge => "<<".into(),
            Node::Collection(value) => value,
        })
    }

    fn key(self) -> Result<String, String> {
        Ok(match self {
            Node::Text(text) => text,
            Node::Bool(value) => value.to_string(),
            Node::Int(value) => value.to_string(),
            Node::Float(value) => float_key(value),
            other => return Err(format!("a {} cannot be a key", other.tag())),
        })
    }
}

/// Converts a float to a JSON number. Go writes whole numbers without a point and reads them as integers.
fn number(value: f64) -> Result<Number, String> {
    /// Whole floats below 2⁶³ are written as integers.
    const WHOLE: f64 = 9_223_372_036_854_775_808.0;
    if value.fract() == 0.0 && value.abs() < WHOLE {
        return Ok((value as i64).into());
    }
    Number::from_f64(value).ok_or_else(|| format!("unsupported value: {value}"))
}

/// Formats a float like Go's `FormatFloat(key, 'g', -1, 32)`.
fn float_key(value: f64) -> String {
    let value = value as f32;
    if !value.is_finite() {
        return if value.is_nan() {
            ".nan"
        } else if value > 0.0 {
            ".inf"
        } else {
            "-.inf"
        }
        .to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..6 => value.to_string(),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// Resolves a scalar without quotes and tag.
fn plain(text: &str) -> Node {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Node::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Node::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Node::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Node::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Node::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Node::Float(f64::NEG_INFINITY),
        "<<" => return Node::Merge,
        _ => {}
    }
    let found = match text.as_bytes().first() {
        Some(b'.') => float(text),
        Some(b'+' | b'-' | b'0'..=b'9') => {
            let digits = text.replace('_', "");
            integer(&digits).or_else(|| float(&digits))
        }
        _ => None,
    };
    found.unwrap_or_else(|| Node::Text(text.to_owned()))
}

/// Parses an integer like Go's `ParseInt` and `ParseUint` with base 0.
fn integer(text: &str) -> Option<Node> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (base, digits) = match digits.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, digits.get(2..)?),
        Some("0b") => (2, digits.get(2..)?),
        Some("0o") => (8, digits.get(2..)?),
        Some(_) if digits.starts_with('0') => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if !digits.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, base).ok()?;
    let value = if negative { -magnitude } else { magnitude };
    let signed = text.starts_with(['-', '+']);
    i64::try_from(value).map(Node::Int).ok().or_else(|| {
        let value = u64::try_from(value).ok()?;
        (!signed).then_some(Node::Unsigned(value))
    })
}

fn float(text: &str) -> Option<Node> {
    if !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')) {
        return None;
    }
    text.parse().ok().filter(|value: &f64| value.is_finite()).map(Node::Float)
}

/// Resolves a scalar.
fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Node, String> {
    let Some(tag) = tag else {
        return Ok(if style == ScalarStyle::Plain { plain(&text) } else { Node::Text(text.into_owned()) });
    };
    let wanted = tag.suffix_in_namespace("tag:yaml.org,2002:").unwrap_or_default();
    match &*wanted {
        "null" | "bool" | "int" | "float" => {
            let found = plain(&text);
            match found {
                Node::Int(value) if wanted == "float" => Ok(Node::Float(value as f64)),
                found if found.tag() == wanted => Ok(found),
                found => Err(format!("cannot decode !!{} `{text}` as a !!{wanted}", found.tag())),
            }
        }
        "binary" => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(text.as_bytes());
            let bytes = bytes.map_err(|_| "!!binary value contains invalid base64 data".to_owned())?;
            Ok(Node::Text(String::from_utf8_lossy(&bytes).into_owned()))
        }
        _ => Ok(Node::Text(text.into_owned())),
    }
}

/// Rejects escapes of YAML 1.2 that YAML 1.1 does not have.
fn check_escapes(quoted: &str) -> Result<(), &'static str> {
    let mut rest = quoted;
    while let Some((_, escape)) = rest.split_once('\\') {
        match escape.as_bytes() {
            [b'/', ..] => return Err("found unknown escape character"),
            [b'u', b'd' | b'D', b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F', ..] => {
                return Err("found invalid Unicode character escape code");
            }
            _ => {}
        }
        let mut chars = escape.chars();
        chars.next();
        rest = chars.as_str();
    }
    Ok(())
}

/// A step of the reader's path, for errors.
enum Step {
    Name(String),
    Position(usize),
}

struct Reader<'a> {
    text: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    dialect: Dialect,
    /// The document's anchors. An alias inside its own anchor finds none.
    anchors: HashMap<usize, Node>,
    /// Nodes that anchors and aliases may still add.
    room: usize,
    path: Vec<Step>,
    duplicates: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, dialect: Dialect) -> Self {
        let options = granit_parser::options! {
            emit_comments: false,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
        };
        Self {
            text,
            parser: Parser::new_from_str_with_options(text, options),
            dialect,
            anchors: HashMap::new(),
            room: MAX_EXPANDED,
            path: Vec::new(),
            duplicates: Vec::new(),
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Error> {
        match self.parser.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(Error(error.to_string())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Reads the next document. Returns `None` at the end.
    fn document(&mut self) -> Result<Option<Document>, Error> {
        loop {
            match self.next()? {
                (Event::DocumentStart(_, Some(version)), span) if (version.major, version.minor) != (1, 1) => {
                    return Err(Error::at(&span, "found incompatible YAML document"));
                }
                (Event::DocumentStart(..), _) => break,
                (Event::StreamEnd, _) => return Ok(None),
                _ => {}
            }
        }
        self.anchors.clear();
        self.path.clear();
        self.duplicates.clear();
        self.room = MAX_EXPANDED;
        let (event, span) = self.next()?;
        let value = self.node(event, &span)?.value().map_err(|why| Error::at(&span, why))?;
        Ok(Some(Document { value, duplicates: std::mem::take(&mut self.duplicates) }))
    }

    /// Reads the node that begins with `event`.
    fn node(&mut self, event: Event<'a>, span: &Span) -> Result<Node, Error> {
        if self.path.len() > MAX_DEPTH {
            return Err(Error::at(span, format!("the text nests deeper than {MAX_DEPTH} levels")));
        }
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                if style == ScalarStyle::DoubleQuoted && self.dialect == Dialect::Yaml {
                    check_escapes(span.slice(self.text).unwrap_or_default()).map_err(|why| Error::at(span, why))?;
                }
                let node = scalar(text, style, tag.as_deref()).map_err(|why| Error::at(span, why))?;
                (anchor, node)
            }
            Event::SequenceStart(_, anchor, _) => (anchor, Node::Collection(self.sequence()?)),
            Event::MappingStart(_, anchor, _) => (anchor, Node::Collection(self.mapping()?)),
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor);
                let node = node.ok_or_else(|| Error::at(span, "an anchor's value contains itself"))?.clone();
                self.copies(&node, span)?;
                (0, node)
            }
            _ => return Err(Error::at(span, "a value is missing")),
        };
        if anchor > 0 {
            self.copies(&node, span)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Counts a copy of a node against the bound for aliases and anchors.
    fn copies(&mut self, node: &Node, span: &Span) -> Result<(), Error> {
        let nodes = if let Node::Collection(value) = node { count(value) } else { 1 };
        let room = self.room.checked_sub(nodes);
        self.room = room.ok_or_else(|| Error::at(span, "document contains excessive aliasing"))?;
        Ok(())
    }

    fn sequence(&mut self) -> Result<Value, Error> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items.into()),
                (event, span) => {
                    self.path.push(Step::Position(items.len()));
                    let item = self.node(event, &span)?.value().map_err(|why| Error::at(&span, why))?;
                    self.path.pop();
                    items.push(item);
                }
            }
        }
    }

    fn mapping(&mut self) -> Result<Value, Error> {
        let mut members = Map::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(members.into());
            }
            let at = |why: String| Error::at(&span, why);
            let node = self.node(event, &span)?;
            let (event, of) = self.next()?;
            if node == Node::Merge {
                let merged = self.node(event, &of)?;
                for (key, value) in merged_members(merged).map_err(at)? {
                    self.insert(&mut members, key, value);
                }
                continue;
            }
            if self.dialect == Dialect::Yaml && span.end.index().saturating_sub(span.start.index()) > MAX_KEY {
                return Err(at("could not find expected ':'".to_owned()));
            }
            self.path.push(Step::Name(node.key().map_err(at)?));
            let value = self.node(event, &of)?.value().map_err(at)?;
            if let Some(Step::Name(key)) = self.path.pop() {
                self.insert(&mut members, key, value);
            }
        }
    }

    fn insert(&mut self, members: &mut Map<String, Value>, key: String, value: Value) {
        if members.contains_key(&key) {
            let mut path = String::new();
            let last = Step::Name(key.clone());
            for step in self.path.iter().chain([&last]) {
                match step {
                    Step::Name(name) if path.is_empty() => path.push_str(name),
                    Step::Name(name) => path.extend([".", name.as_str()]),
                    Step::Position(at) => path.push_str(&format!("[{at}]")),
                }
            }
            self.duplicates.push(path);
        }
        members.insert(key, value);
    }
}

/// Returns the members that `<<` adds, from one mapping or several. Earlier mappings take precedence.
fn merged_members(node: Node) -> Result<Vec<(String, Value)>, String> {
    let maps = match node {
        Node::Collection(Value::Array(maps)) => maps,
        Node::Collection(map) => vec![map],
        _ => Vec::new(),
    };
    let mut members = Vec::new();
    for map in maps.into_iter().rev() {
        let Value::Object(map) = map else { return Err(not_a_map()) };
        members.extend(map);
    }
    if members.is_empty() { Err(not_a_map()) } else { Ok(members) }
}

fn not_a_map() -> String {
    "map merge requires map or sequence of maps as the value".to_owned()
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        first(text).map(|document| document.value).map_err(|error| error.to_string())
    }

    /// The expected values are from sigs.k8s.io/yaml 1.6.0.
    #[test]
    fn scalars_are_what_go_yaml_makes_of_them() {
        for (text, value) in [
            ("0644", json!(420)),
            ("-0644", json!(-420)),
            ("+0644", json!(420)),
            ("0o644", json!(420)),
            ("0888", json!(888)),
            ("08", json!(8)),
            ("010.5", json!(10.5)),
            ("1_000", json!(1000)),
            ("0_7", json!(7)),
            ("0b101", json!(5)),
            ("-0b11", json!(-3)),
            ("0x1F", json!(31)),
            ("-0x1f", json!(-31)),
            ("0o8", json!("0o8")),
            ("0b2", json!("0b2")),
            ("0x", json!("0x")),
            ("_1", json!("_1")),
            ("+", json!("+")),
            ("1e400", json!("1e400")),
            ("1.0", json!(1)),
            ("1.", json!(1)),
            (".5", json!(0.5)),
            ("-.5", json!(-0.5)),
            ("1e3", json!(1000)),
            ("1.e5", json!(100_000)),
            (".e5", json!(".e5")),
            ("1e", json!("1e")),
            ("-0", json!(0)),
            ("-0.0", json!(0)),
            ("9223372036854775808", json!(9_223_372_036_854_775_808_u64)),
            ("1e21", json!(1e21)),
            ("-9223372036854775809", json!(-9_223_372_036_854_775_809.0_f64)),
            ("oFF", json!("oFF")),
            ("yES", json!("yES")),
            ("off", json!(false)),
            ("y", json!(true)),
            ("No", json!(false)),
            ("~", json!(null)),
            ("", json!(null)),
            ("NULL", json!(null)),
            ("nULL", json!("nULL")),
            ("~x", json!("~x")),
            ("2015-01-01", json!("2015-01-01")),
            ("190:20:30", json!("190:20:30")),
            ("1,2", json!("1,2")),
            ("=", json!("=")),
            ("<<", json!("<<")),
            ("! 5", json!("5")),
            ("!foo 5", json!("5")),
            ("!!str 5", json!("5")),
            ("!!str", json!("")),
            ("!!int '5'", json!(5)),
            ("!!float 5", json!(5)),
            ("!!bool yes", json!(true)),
            ("!!null ~", json!(null)),
            ("!!binary aGk=", json!("hi")),
            ("!!set {b}", json!({"b": null})),
            ("!!timestamp 2015-01-01", json!("2015-01-01")),
            ("'5'", json!("5")),
            ("x #c", json!("x")),
            ("x#c", json!("x#c")),
            ("x\n  y\n\n  z", json!("x y\nz")),
            (">-\n  x\n  y\n", json!("x y")),
            ("[b: c]", json!([{"b": "c"}])),
        ] {
            assert_eq!(read(&format!("a: {text}")), Ok(json!({ "a": value })), "{text}");
        }
    }

    #[test]
    fn keys_are_texts_whatever_they_look_like() {
        for (text, value) in [
            ("{x: 1, y: 2}", json!({"x": 1, "true": 2})),
            ("1: a", json!({"1": "a"})),
            ("0x10: a", json!({"16": "a"})),
            ("1.5: a", json!({"1.5": "a"})),
            ("1e5: a", json!({"100000": "a"})),
            ("1e6: a", json!({"1e+06": "a"})),
            ("0.00001: a", json!({"1e-05": "a"})),
            ("16777217.5: a", json!({"1.6777218e+07": "a"})),
            ("!!str y: 1", json!({"y": 1})),
            ("'y': 1", json!({"y": 1})),
            (r#"{"<<":1}"#, json!({"<<": 1})),
            ("{a, b: }", json!({"a": null, "b": null})),
            ("? a\n: b", json!({"a": "b"})),
        ] {
            assert_eq!(read(text), Ok(value), "{text}");
        }
        for text in ["~: a", "[a]: b", "{a: b}: c", "9223372036854775808: a"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn line_breaks_of_yaml_1_1_fold_and_control_characters_are_refused() {
        for (text, value) in [
            ("{\"a\":\"x\u{85}y\"}", json!({"a": "x y"})),
            ("a: ['it''s\u{85}x', \"\\\"\u{85}y\"]", json!({"a": ["it's x", "\" y"]})),
            ("a: \"x\u{85}\u{85}y\"", json!({"a": "x\ny"})),
            ("a: b\u{85}c: d", json!({"a": "b", "c": "d"})),
            ("a: 'x \u{85} y'", json!({"a": "x y"})),
            ("{\"a\":\"a \u{2028} b\"}", json!({"a": "a\u{2028}b"})),
            ("a: b \u{2028} c", json!({"a": "b\u{2028}c"})),
            ("a: \"x \u{2029} \u{2028} y\"", json!({"a": "x\u{2029}\u{2028}y"})),
            ("a: x\u{a0}", json!({"a": "x\u{a0}"})),
            (r#"a: "\x41\u0085\_\N\L\P\0\u007f""#, json!({"a": "A\u{85}\u{a0}\u{85}\u{2028}\u{2029}\0\u{7f}"})),
            ("{\"a\":\"x\u{feff}y\"}", json!({"a": "x\u{feff}y"})),
            ("\u{feff}a: 1", json!({"a": 1})),
        ] {
            assert_eq!(read(text), Ok(value), "{text:?}");
        }
        for character in ['\u{7f}', '\u{80}', '\u{9f}', '\u{fffe}', '\u{ffff}', '\u{1}'] {
            let refused = read(&format!("{{\"a\":\"{character}\"}}"));
            assert_eq!(refused, Err("control characters are not allowed".to_owned()), "{character:?}");
        }
    }

    #[test]
    fn json_that_is_not_yaml_is_refused() {
        for text in [r#"{"a":"\ud83d\ude00"}"#, r#"{"a":"\/"}"#, "a: !!null x", "a: !!int x", "a: .inf"] {
            assert!(read(text).is_err(), "{text}");
            assert!(!is_same_as_json(text), "{text}");
        }
        let named = |name: &str| format!("{{\"{name}\":1}}");
        for (name, reads) in [("k".repeat(1022), true), ("é".repeat(1022), true), ("k".repeat(1023), false)] {
            assert_eq!(read(&named(&name)).is_ok(), reads, "{}", name.len());
        }
        assert!(!is_same_as_json(&named(&"k".repeat(1023))));
        assert!(is_same_as_json(&named(&"k".repeat(1022))));
        for text in ["{\"a\":\"x\u{85}\"}", "{\"a\":\"\u{2028}\"}", "{\"a\":\"\u{ffff}\"}", "a: 1", "\t{}"] {
            assert!(!is_same_as_json(text), "{text:?}");
        }
        assert!(is_same_as_json("{\"a\": \"é \u{2027}\u{fffd}\u{feff} \\u0085 \\\" \\n\"}"));
    }

    #[test]
    fn a_key_twice_is_reported_and_the_last_one_counts() {
        let read = |text| first(text).map(|document| (document.value, document.duplicates)).expect("it is read");
        let twice = read("a:\n- {b: {c: 1, c: 2}}\n- {b: 1, d: 1, b: 2}");
        let paths = vec!["a[0].b.c".to_owned(), "a[1].b".to_owned()];
        assert_eq!(twice, (json!({"a": [{"b": {"c": 2}}, {"b": 2, "d": 1}]}), paths));
        assert_eq!(read("x: 1\n'x': 2"), (json!({"x": 2}), vec!["x".to_owned()]));
        let merged = read("a: &x {b: 1, c: 3}\nd: {<<: *x, b: 2}");
        assert_eq!(merged, (json!({"a": {"b": 1, "c": 3}, "d": {"b": 2, "c": 3}}), vec!["d.b".to_owned()]));
    }

    #[test]
    fn documents_are_read_up_to_the_one_that_cannot() {
        assert_eq!(read("a: 1\n---\nb: ["), Ok(json!({"a": 1})));
        assert_eq!(read("# nothing"), Ok(Value::Null));
        let (all, error) = documents("---\na: 1\n---\n# nothing\n---\nb: 2\n---\nc: [\n");
        let values: Vec<_> = all.into_iter().map(|document| document.value).collect();
        assert_eq!(values, [json!({"a": 1}), Value::Null, json!({"b": 2})]);
        assert!(error.is_some());
    }

    #[test]
    fn what_grows_without_end_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&nested(MAX_DEPTH)).is_ok());
        assert!(read(&nested(MAX_DEPTH + 2)).is_err());
        assert!(deep_json(&format!("{{\"a\":{}}}", nested(200))).is_ok());
        assert_eq!(deep_json(r#"{"a":"\ud83d\ude00\/"}"#).map(|read| read.value), Ok(json!({"a": "😀/"})));
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let before = format!("*a{},", level - 1).repeat(10);
            laughs += &format!("a{level}: &a{level} [{before}]\n");
        }
        assert!(read(&laughs).is_err());
        assert!(read("a: &x [*x]").is_err());
        assert!(read("a: *x").is_err());
        assert_eq!(read("a: &a [1]\nb: *a"), Ok(json!({"a": [1], "b": [1]})));
    }
}

//! Several field paths as one tree, and the walks over a text that it guides.

use std::{borrow::Cow, ops::Range};

use super::{FieldPath, Step};
use crate::json::{ParseError, Reader};

/// Largest number of values of one path in one object. More than the endpoints of a full EndpointSlice, and few enough
/// that an object of short strings does not cost an index many times its own size.
pub const MAX_VALUES: usize = 4_096;

/// Members that every projection keeps.
const IDENTITY: [&[&str]; 4] = [&["apiVersion"], &["kind"], &["metadata", "name"], &["metadata", "namespace"]];

/// Field paths that are found together, in one walk over a text.
///
/// A walk requires JSON as the API server writes it and as it entered the store, in which no member appears twice in
/// one object. It skips other values by their quotes and brackets alone.
#[derive(Clone, Debug)]
pub struct FieldSet {
    paths: Box<[FieldPath]>,
    tree: Node,
    /// The same paths, and the identity of an object.
    projection: Node,
}

/// The paths below one place.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Numbers of the paths that end here.
    ends: Vec<usize>,
    members: Vec<(Box<str>, Node)>,
    each: Option<Box<Node>>,
}

impl Node {
    fn insert<'s>(&mut self, mut steps: impl Iterator<Item = &'s Step>, end: usize) {
        let next = match steps.next() {
            None => return self.ends.push(end),
            Some(Step::Each) => &mut **self.each.get_or_insert_default(),
            Some(Step::Member(name)) => match self.members.iter().position(|(known, _)| known == name) {
                Some(at) => &mut self.members[at].1,
                None => &mut self.members.push_mut((name.clone(), Self::default())).1,
            },
        };
        next.insert(steps, end);
    }

    fn member(&self, name: &str) -> Option<&Self> {
        self.members.iter().find(|(known, _)| **known == *name).map(|(_, node)| node)
    }

    fn is_end(&self) -> bool {
        !self.ends.is_empty()
    }

    fn leads(&self, into: Option<u8>) -> Option<Container<'_>> {
        match (into, &self.each) {
            (Some(b'{'), _) if !self.members.is_empty() => Some(Container::Object),
            (Some(b'['), Some(each)) => Some(Container::Array(each)),
            _ => None,
        }
    }
}

/// The kind of value that a path continues in.
enum Container<'n> {
    Object,
    Array(&'n Node),
}

impl Default for FieldSet {
    /// Creates a set without paths.
    fn default() -> Self {
        Self::new([])
    }
}

impl FieldSet {
    /// Creates a set of paths, which may repeat.
    pub fn new(paths: impl IntoIterator<Item = FieldPath>) -> Self {
        let paths: Box<[FieldPath]> = paths.into_iter().collect();
        let mut tree = Node::default();
        for (number, path) in paths.iter().enumerate() {
            tree.insert(path.steps.iter(), number);
        }
        let mut projection = tree.clone();
        for names in IDENTITY {
            let steps: Vec<_> = names.iter().map(|name| Step::Member((*name).into())).collect();
            projection.insert(steps.iter(), paths.len());
        }
        Self { paths, tree, projection }
    }

    /// Returns the paths in the given order.
    pub fn paths(&self) -> &[FieldPath] {
        &self.paths
    }

    /// Returns, for each path, its distinct values in ascending order. Strings are decoded, numbers and booleans keep
    /// their text; null, objects and arrays have no value.
    ///
    /// Only the first [`MAX_VALUES`] places of a path count.
    ///
    /// # Errors
    /// Fails on some texts that are not valid JSON.
    pub fn values<'a>(&self, json: &'a str) -> Result<Vec<Vec<Cow<'a, str>>>, ParseError> {
        let mut found = vec![Vec::new(); self.paths.len()];
        if !self.paths.is_empty() {
            Values { reader: Reader::new(json), found: &mut found }.walk(&self.tree, true)?;
        }
        for values in &mut found {
            values.sort_unstable();
            values.dedup();
        }
        Ok(found)
    }

    /// Returns the object with only these fields, and apiVersion, kind, `metadata.name` and `metadata.namespace`.
    ///
    /// Kept fields keep their order and text. Objects and arrays on the way to a field are kept even without the field.
    /// Arrays keep all elements; `null` replaces an element of another type than the path requires.
    ///
    /// # Errors
    /// Fails on some texts that are not valid JSON.
    pub fn project(&self, json: &str) -> Result<String, ParseError> {
        let mut walk = Projection { reader: Reader::new(json), out: String::new() };
        if !walk.walk(&self.projection)? {
            return walk.reader.unexpected("text", "an object");
        }
        walk.reader.end()?;
        Ok(walk.out)
    }

    /// Returns the object without these fields. Members are removed with their names, elements with their places. All
    /// other bytes stay.
    ///
    /// # Errors
    /// Fails on some texts that are not valid JSON.
    pub fn cut<'a>(&self, json: &'a str) -> Result<Cow<'a, str>, ParseError> {
        let mut walk = Cut { reader: Reader::new(json), cuts: Vec::new() };
        walk.walk(&self.tree)?;
        walk.reader.end()?;
        if walk.cuts.is_empty() {
            return Ok(Cow::Borrowed(json));
        }
        let gone: usize = walk.cuts.iter().map(Range::len).sum();
        let mut left = String::with_capacity(json.len() - gone);
        let mut at = 0;
        for cut in walk.cuts {
            left.push_str(&json[at..cut.start]);
            at = cut.end;
        }
        left.push_str(&json[at..]);
        Ok(Cow::Owned(left))
    }
}

struct Values<'a, 'f> {
    reader: Reader<'a>,
    found: &'f mut [Vec<Cow<'a, str>>],
}

impl Values<'_, '_> {
    /// Collects from the value at the reader. `last`: nothing after it is needed, so the reader need not reach its end.
    fn walk(&mut self, node: &Node, last: bool) -> Result<(), ParseError> {
        let first = self.reader.peek();
        match node.leads(first) {
            Some(Container::Object) => {
                self.reader.enter_object("value")?;
                let mut wanted = node.members.len();
                while let Some(name) = self.reader.member()? {
                    let Some(member) = node.member(&name.decode()) else {
                        self.reader.skip()?;
                        continue;
                    };
                    wanted = wanted.saturating_sub(1);
                    let last = last && wanted == 0;
                    self.walk(member, last)?;
                    if last {
                        return Ok(());
                    }
                }
            }
            Some(Container::Array(each)) => {
                self.reader.enter_array("value")?;
                while self.reader.element()? {
                    self.walk(each, false)?;
                }
            }
            None => self.take(node, first)?,
        }
        Ok(())
    }

    fn take(&mut self, node: &Node, first: Option<u8>) -> Result<(), ParseError> {
        let value = match first {
            Some(b'"') if node.is_end() => Some(self.reader.string()?.decode()),
            _ => {
                let text = self.reader.skip()?;
                (!matches!(first, Some(b'{' | b'[' | b'n' | b'"'))).then_some(Cow::Borrowed(text))
            }
        };
        for end in &node.ends {
            let values = &mut self.found[*end];
            if values.len() < MAX_VALUES {
                values.extend(value.clone());
            }
        }
        Ok(())
    }
}

struct Projection<'a> {
    reader: Reader<'a>,
    out: String,
}

impl Projection<'_> {
    /// Writes the kept parts of the value at the reader. Returns `false` if there are none.
    fn walk(&mut self, node: &Node) -> Result<bool, ParseError> {
        if node.is_end() {
            let value = self.reader.skip()?;
            self.out.push_str(value);
            return Ok(true);
        }
        let first = self.reader.peek();
        match node.leads(first) {
            Some(Container::Object) => self.object(node)?,
            Some(Container::Array(each)) => self.array(each)?,
            None => {
                self.reader.skip()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn object(&mut self, node: &Node) -> Result<(), ParseError> {
        self.reader.enter_object("value")?;
        self.out.push('{');
        let mut comma = false;
        while let Some(name) = self.reader.member()? {
            let Some(member) = node.member(&name.decode()) else {
                self.reader.skip()?;
                continue;
            };
            let before = self.out.len();
            if comma {
                self.out.push(',');
            }
            self.out.push('"');
            self.out.push_str(name.raw());
            self.out.push_str("\":");
            if self.walk(member)? {
                comma = true;
            } else {
                self.out.truncate(before);
            }
        }
        self.out.push('}');
        Ok(())
    }

    fn array(&mut self, each: &Node) -> Result<(), ParseError> {
        self.reader.enter_array("value")?;
        self.out.push('[');
        let mut comma = false;
        while self.reader.element()? {
            if comma {
                self.out.push(',');
            }
            comma = true;
            if !self.walk(each)? {
                self.out.push_str("null");
            }
        }
        self.out.push(']');
        Ok(())
    }
}

struct Cut<'a> {
    reader: Reader<'a>,
    /// Ascending, and not adjacent.
    cuts: Vec<Range<usize>>,
}

/// Where a cut may begin in an object or an array.
#[derive(Default)]
struct Gap {
    /// End of the last kept member.
    kept: Option<usize>,
    /// Start of the removed members before any kept one: the comma after them is removed too.
    leading: Option<usize>,
}

impl Cut<'_> {
    /// Finds the parts to cut from the value at the reader, which itself stays.
    fn walk(&mut self, node: &Node) -> Result<(), ParseError> {
        let first = self.reader.peek();
        match node.leads(first) {
            Some(Container::Object) => {
                self.reader.enter_object("value")?;
                let mut gap = Gap::default();
                while let Some(name) = self.reader.member()? {
                    let member = node.member(&name.decode());
                    self.part(name.start(), member, &mut gap)?;
                }
                self.close(&gap);
            }
            Some(Container::Array(each)) => {
                self.reader.enter_array("value")?;
                let mut gap = Gap::default();
                while self.reader.element()? {
                    self.reader.peek();
                    self.part(self.reader.at(), Some(each), &mut gap)?;
                }
                self.close(&gap);
            }
            None => {
                self.reader.skip()?;
            }
        }
        Ok(())
    }

    /// Handles a member or an element that begins at `start`; the reader is at its value.
    fn part(&mut self, start: usize, node: Option<&Node>, gap: &mut Gap) -> Result<(), ParseError> {
        if node.is_some_and(Node::is_end) {
            self.reader.skip()?;
            match gap.kept {
                Some(kept) => self.cut(kept..self.reader.at()),
                None => {
                    gap.leading.get_or_insert(start);
                }
            }
            return Ok(());
        }
        if let Some(leading) = gap.leading.take() {
            self.cut(leading..start);
        }
        match node {
            Some(node) => self.walk(node)?,
            None => {
                self.reader.skip()?;
            }
        }
        gap.kept = Some(self.reader.at());
        Ok(())
    }

    /// Ends an object or array that has been left.
    fn close(&mut self, gap: &Gap) {
        if let Some(leading) = gap.leading {
            self.cut(leading..self.reader.at() - 1);
        }
    }

    fn cut(&mut self, range: Range<usize>) {
        match self.cuts.last_mut() {
            Some(last) if last.end >= range.start => last.end = range.end,
            _ => self.cuts.push(range),
        }
    }
}

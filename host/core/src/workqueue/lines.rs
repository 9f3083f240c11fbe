//! The lines of ready keys, one for each priority.
//!
//! Owns the order of ready keys, as indices of the queue's slab; knows neither keys nor times. A line is a doubly
//! linked list through one table of links, so that a key can leave the middle at constant cost. Numbers rise from head
//! to tail, so that a blocked key finds its position again.

use super::Index;

/// No neighbour.
const END: Index = Index::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: Index,
    after: Index,
    number: u64,
}

const LOOSE: Link = Link { before: END, after: END, number: 0 };

#[derive(Debug)]
struct Line {
    priority: i32,
    head: Index,
    tail: Index,
    /// Keys that no worker has. The others only hold their position.
    takeable: usize,
}

/// All lines of one queue. An index is in at most one line; the caller knows which, and whether it is takeable.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By falling priority. Empty lines are removed.
    lines: Vec<Line>,
    /// By index.
    links: Vec<Link>,
    /// The last assigned number.
    number: u64,
}

impl Lines {
    /// Returns the head of the line with the highest priority, and that priority.
    pub(super) fn first(&self) -> Option<(Index, i32)> {
        self.lines.first().map(|line| (line.head, line.priority))
    }

    /// Puts `index`, which is in no line, at the end of a line.
    pub(super) fn push_back(&mut self, index: Index, priority: i32, takeable: bool) {
        self.number += 1;
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, LOOSE);
        }
        self.links[index as usize].number = self.number;
        let line = self.line(priority);
        let tail = self.lines[line].tail;
        self.join(line, tail, index, END);
        self.lines[line].takeable += usize::from(takeable);
    }

    /// Puts `index` back at the position of its number, takeable. It must have left this line at the head. Only others
    /// that did the same and came back can be before it, so the walk passes no more than there are workers.
    pub(super) fn put_back(&mut self, index: Index, priority: i32) {
        let number = self.links[index as usize].number;
        let line = self.line(priority);
        let (mut before, mut after) = (END, self.lines[line].head);
        while after != END && self.links[after as usize].number < number {
            (before, after) = (after, self.links[after as usize].after);
        }
        self.join(line, before, index, after);
        self.lines[line].takeable += 1;
    }

    /// Removes `index` from its line.
    pub(super) fn remove(&mut self, index: Index, priority: i32, takeable: bool) {
        let line = self.line(priority);
        let Link { before, after, .. } = self.links[index as usize];
        match before {
            END => self.lines[line].head = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            END => self.lines[line].tail = before,
            after => self.links[after as usize].before = before,
        }
        self.lines[line].takeable -= usize::from(takeable);
        if self.lines[line].head == END {
            self.lines.remove(line);
        }
    }

    /// Makes an index in the line of `priority` takeable.
    pub(super) fn make_takeable(&mut self, priority: i32) {
        let line = self.line(priority);
        self.lines[line].takeable += 1;
    }

    /// Returns the number of takeable keys.
    pub(super) fn takeable(&self) -> usize {
        self.lines.iter().map(|line| line.takeable).sum()
    }

    /// Returns the number of takeable keys by priority, without zeros.
    pub(super) fn depths(&self) -> impl Iterator<Item = (i32, usize)> {
        self.lines.iter().filter(|line| line.takeable > 0).map(|line| (line.priority, line.takeable))
    }

    /// Finds or creates the line of `priority`.
    fn line(&mut self, priority: i32) -> usize {
        match self.lines.binary_search_by(|line| priority.cmp(&line.priority)) {
            Ok(place) => place,
            Err(place) => {
                self.lines.insert(place, Line { priority, head: END, tail: END, takeable: 0 });
                place
            }
        }
    }

    /// Links `index` in between two neighbours of one line.
    fn join(&mut self, line: usize, before: Index, index: Index, after: Index) {
        let link = &mut self.links[index as usize];
        (link.before, link.after) = (before, after);
        match before {
            END => self.lines[line].head = index,
            before => self.links[before as usize].after = index,
        }
        match after {
            END => self.lines[line].tail = index,
            after => self.links[after as usize].before = index,
        }
    }
}

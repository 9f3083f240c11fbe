//! The lines in which ready keys stand, one for each priority.
//!
//! Owns the order of what is ready, as indices of the queue's slab; knows neither keys nor times. A line is a doubly linked
//! list through one table of links, so that what stands in the middle leaves at no cost and leaves nothing stale behind.
//! Numbers rise from head to tail, so that what stepped out of a line finds its place again.

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
    /// Those whose key no worker has. The others hold their place only.
    takeable: usize,
}

/// All lines of one queue. An index stands in one line at most; the caller knows in which, and whether it is takeable.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By falling priority. A line exists while something stands in it.
    lines: Vec<Line>,
    /// By index.
    links: Vec<Link>,
    /// The last number given.
    number: u64,
}

impl Lines {
    /// The head of the highest line, and that line's priority.
    pub(super) fn first(&self) -> Option<(Index, i32)> {
        self.lines.first().map(|line| (line.head, line.priority))
    }

    /// Puts `index`, which stands in no line, at the end of a line.
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

    /// Puts `index` back where its number places it, takeable. It has to have left this line at its head, so that only such
    /// as left likewise and came back can stand before it: the walk passes no more than there are workers.
    pub(super) fn step_back(&mut self, index: Index, priority: i32) {
        let number = self.links[index as usize].number;
        let line = self.line(priority);
        let (mut before, mut after) = (END, self.lines[line].head);
        while after != END && self.links[after as usize].number < number {
            (before, after) = (after, self.links[after as usize].after);
        }
        self.join(line, before, index, after);
        self.lines[line].takeable += 1;
    }

    /// Takes `index` out of the line in which it stands.
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

    /// What stands in the line of `priority` without being takeable has become so.
    pub(super) fn now_takeable(&mut self, priority: i32) {
        let line = self.line(priority);
        self.lines[line].takeable += 1;
    }

    /// How many are takeable.
    pub(super) fn takeable(&self) -> usize {
        self.lines.iter().map(|line| line.takeable).sum()
    }

    /// How many are takeable by priority, where any are.
    pub(super) fn depths(&self) -> impl Iterator<Item = (i32, usize)> {
        self.lines.iter().filter(|line| line.takeable > 0).map(|line| (line.priority, line.takeable))
    }

    /// The place of the line of `priority`, made if there is none.
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

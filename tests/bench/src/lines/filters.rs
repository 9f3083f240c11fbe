//! A change through the filters of 64 leases, as an informer does it under its lock: as many as one plugin may cause.

use std::{cell::OnceCell, fmt::Write as _, hint::black_box};

use anyhow::{Context, Result, ensure};
use pilothouse_core::{
    informer::{Filter, InformerKey},
    key::TypeMeta,
    object::Object,
    selector::Selector,
};

use crate::{
    clock::{cpu_time, micros_each},
    statistics::median,
};

const LEASES: usize = 64;

/// An object with labels, and the leases on its kind.
struct Case {
    labels: usize,
    requirements: usize,
    passes: usize,
    changes: usize,
}

/// An ordinary Pod and ordinary selectors.
const ORDINARY: Case = Case { labels: 8, requirements: 2, passes: 20, changes: 1000 };

/// Labels that fill an object of 1.5 MiB together with their field set, and the longest selectors.
const EXTREME: Case = Case { labels: 40_000, requirements: 64, passes: 5, changes: 10 };

pub(super) fn measure() -> Result<Vec<f64>> {
    [ORDINARY, EXTREME].iter().map(Case::measure).collect()
}

impl Case {
    /// CPU time of one change, whose old and new object each pass all filters.
    fn measure(&self) -> Result<f64> {
        let of = TypeMeta::new("v1", "Pod");
        let all = InformerKey::all(of.clone());
        let mut filters = Vec::new();
        for lease in 0..LEASES {
            // All but the last requirement hold, so each is looked at.
            let mut selector = (1..self.requirements).fold(String::new(), |mut text, number| {
                let _ = write!(text, "l{}=v,", number * self.labels / self.requirements);
                text
            });
            let _ = write!(selector, "z=lease-{lease}");
            let labels = Selector::parse(&selector).context("cannot read a selector")?;
            filters.push(Filter::new(&all, &InformerKey { labels, ..all.clone() }));
        }
        let labels: Vec<_> = (0..self.labels - 1).map(|number| format!(r#""l{number}":"v""#)).collect();
        let object = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"1","labels":{{{},"z":"lease-7"}}}}}}"#,
            labels.join(",")
        );
        let object = Object::parse(object.as_bytes(), &of)?;
        let mut passes = Vec::new();
        let mut shown = 0;
        for _ in 0..self.passes {
            let time = cpu_time(|| {
                for _ in 0..self.changes {
                    for side in [&object, &object] {
                        let labels = OnceCell::new();
                        let shows = |filter: &&Filter| {
                            filter.shows_by(side, || labels.get_or_init(|| black_box(side).sorted_labels()))
                        };
                        shown += filters.iter().filter(shows).count();
                    }
                }
            });
            passes.push(micros_each(time, self.changes));
        }
        ensure!(shown == 2 * self.passes * self.changes, "{shown} sides of changes were shown");
        median(&passes).context("nothing was measured")
    }
}

//! Hostile and peculiar plugins for tests: one example each, in `examples/`, with the file that grants it beside it.
//!
//! [`GUESTS`] says what each of them is and what a host is to make of it, for the tests that load them. Most are for
//! `MyApple` of `stable.example.com/v1` and behave well ([`apple::well_behaved`]) unless the object's name begins with `bad-`,
//! so that a test can show that other keys go on. None brings the CustomResourceDefinition: the `myapple` plugin's is
//! assumed to be there.
//!
//! `plugins/build.sh guests` builds them to `target/guests/<name>.wasm`.

pub mod apple;

/// A plugin of `examples/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The example's name, and the component's file name without `.wasm`.
    pub name: &'static str,
    /// What a host makes of it.
    pub expected: Expected,
    /// What it does, for people.
    pub does: &'static str,
}

/// What a host makes of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It becomes active and all its reconciles end as its description says.
    Works,
    /// It becomes active; a call for an object named `bad-*` (for `nonsense`: of a color that names a mistake) fails and is
    /// tried again, and every other object has its child and its status.
    Contained,
    /// It never becomes active, as something that it imports is not there.
    NotLinked,
    /// It never becomes active, as it cannot describe itself or describes what cannot be.
    NotDescribed,
}

/// All of them, by name.
pub const GUESTS: &[Guest] = &[
    Guest {
        name: "adopting",
        expected: Expected::Works,
        does: "has one child, <name>-shared with data adopted=yes, and takes over what is there",
    },
    Guest {
        name: "asking",
        expected: Expected::Contained,
        does: "for bad-* reads the cache for ever; its timeout is 300 ms",
    },
    Guest {
        name: "counting",
        expected: Expected::Works,
        does: "adds 1 to status.available every 20 ms until it is spec.quantity",
    },
    Guest {
        name: "deploying",
        expected: Expected::Works,
        does: "has one child, the Deployment <name>-juice of spec.quantity replicas, of which the server keeps more than it is sent",
    },
    Guest {
        name: "describe_calls",
        expected: Expected::NotDescribed,
        does: "asks for the time while it describes itself",
    },
    Guest {
        name: "describe_fails",
        expected: Expected::NotDescribed,
        does: "refuses every configuration with the message `nothing suits me`",
    },
    Guest { name: "describe_loops", expected: Expected::NotDescribed, does: "never ends describing itself" },
    Guest {
        name: "describe_nonsense",
        expected: Expected::NotDescribed,
        does: "has two controllers of one impossible name, an empty kind, a selector and a CRD that are none",
    },
    Guest {
        name: "describe_oversized",
        expected: Expected::NotDescribed,
        does: "has more controllers, watches and selectors by fields than there may be, and a CRD of 4 MiB",
    },
    Guest { name: "describe_traps", expected: Expected::NotDescribed, does: "panics while it describes itself" },
    Guest {
        name: "describe_unexported",
        expected: Expected::NotDescribed,
        does: "has a mapping `plugin` and observes, and exports neither mapper nor observer",
    },
    Guest {
        name: "entering",
        expected: Expected::Works,
        does: "logs `called` with each ConfigMap's annotation guests.example.com/mark as soon as it is entered, and does nothing else",
    },
    Guest {
        name: "failing",
        expected: Expected::Works,
        does: "of color `retry` fails twice, then puts attempt and last error into condition Tried; of color `terminal` \
               fails for good with status.available 7",
    },
    Guest {
        name: "filling",
        expected: Expected::Works,
        does: "for bad-* fills 32 MiB sixteen times, each in one go, before it answers; it behaves well otherwise",
    },
    Guest {
        name: "flooding",
        expected: Expected::Works,
        does: "for bad-* logs 20,000 lines of 1 kB before it answers; it behaves well otherwise",
    },
    Guest {
        name: "flooding_requests",
        expected: Expected::Contained,
        does: "for bad-* reads from the API server without end, 256 objects at once; its timeout is 300 ms",
    },
    Guest {
        name: "flooding_writes",
        expected: Expected::Contained,
        does: "for bad-* writes to the API server without end, 256 objects at once; its timeout is 300 ms",
    },
    Guest {
        name: "furnishing",
        expected: Expected::Works,
        does: "has the children of fourteen kinds that spec.color lists as JSON, as they are written there",
    },
    Guest {
        name: "garbling",
        expected: Expected::Contained,
        does: "for bad-1 answers with a status that is no UTF-8, for other bad-* logs a line that is none",
    },
    Guest { name: "greedy", expected: Expected::NotLinked, does: "imports test:greedy/secrets, which no host has" },
    Guest {
        name: "hoarding",
        expected: Expected::Works,
        does: "for bad-* reads ConfigMaps by 900 selectors of its own before it answers; it behaves well otherwise",
    },
    Guest {
        name: "huge",
        expected: Expected::Contained,
        does: "for bad-1 answers with a status of 8 MiB, for other bad-* with children of 17 MiB",
    },
    Guest { name: "hungry", expected: Expected::Contained, does: "for bad-* allocates memory without end" },
    Guest {
        name: "idling",
        expected: Expected::Works,
        does: "asks for its instances to be kept; answers that all is as it should be, whatever the object",
    },
    Guest {
        name: "imperative",
        expected: Expected::Works,
        does: "creates, patches and deletes <name>-made through the client and says in conditions SawCreate, SawPatch and \
               SawDelete whether the cache showed each write in the same call",
    },
    Guest {
        name: "judging",
        expected: Expected::Works,
        does: "watches ConfigMaps under 256 CEL expressions that take long, and has for bad-* a large child that changes with it",
    },
    Guest {
        name: "listing",
        expected: Expected::Works,
        does: "counts the ConfigMaps with the label list=<name> in status.available, and by keys, fields, index and small pages",
    },
    Guest { name: "looping", expected: Expected::Contained, does: "for bad-* never returns; its timeout is 300 ms" },
    Guest {
        name: "mapping",
        expected: Expected::Works,
        does: "is woken by ConfigMaps that it does not read, as their label `by` says, and counts its calls in status.available",
    },
    Guest {
        name: "mapping_badly",
        expected: Expected::Works,
        does: "maps ConfigMaps with the label `mistake` by making it: traps, loops, fails, names too many keys or none that is",
    },
    Guest {
        name: "naming",
        expected: Expected::Works,
        does: "for bad-* reads 900 ConfigMaps of the longest names, none of which is there; it behaves well otherwise",
    },
    Guest {
        name: "nesting",
        expected: Expected::Works,
        does: "logs `called` with the name and phase of each Tree, a kind of the test's, and what the cache says of the one that its label `beside` names",
    },
    Guest {
        name: "nonsense",
        expected: Expected::Contained,
        does: "answers with the mistake that spec.color names (see its source); any other color is well-behaved",
    },
    Guest {
        name: "noting",
        expected: Expected::Works,
        does: "logs `called` with the name of each ConfigMap and its annotation guests.example.com/mark, and does nothing else",
    },
    Guest {
        name: "observing",
        expected: Expected::Works,
        does: "has no controller; appends a line for each change of a ConfigMap with the label `observed` to the ConfigMap `told`",
    },
    Guest {
        name: "observing_badly",
        expected: Expected::Works,
        does: "observes ConfigMaps with the label `mistake` by making it: traps, loops, fails; its reconciles are well-behaved",
    },
    Guest {
        name: "oversized",
        expected: Expected::Contained,
        does: "for bad-1 asks the cache by a selector of a hundred thousand requirements, for other bad-* by a name of 1 MiB",
    },
    Guest {
        name: "passing",
        expected: Expected::Works,
        does: "of a ConfigMap with data.hops above 0 gives one less to that of the same name in the namespace data.next",
    },
    Guest {
        name: "peeping",
        expected: Expected::Works,
        does: "reads the cache beyond its namespace, its kinds and its indexes, and says in one condition for each try what it \
               was told; True: denied",
    },
    Guest {
        name: "reading",
        expected: Expected::Works,
        does: "says in conditions what it reads by name, by label and in vain, and counts its calls in status.available",
    },
    Guest { name: "recursing", expected: Expected::Contained, does: "for bad-* calls itself without end" },
    Guest {
        name: "recursing_wide",
        expected: Expected::Contained,
        does: "for bad-* calls itself without end, with 64 kB of its memory for each call",
    },
    Guest {
        name: "reentering",
        expected: Expected::Contained,
        does: "for bad-* looks at the clock while the host asks it for memory",
    },
    Guest {
        name: "remembering",
        expected: Expected::Works,
        does: "asks for its instances to be kept; puts a hundred times the calls that its instance has served, and the quantity, \
               into status.available",
    },
    Guest {
        name: "reusing",
        expected: Expected::Works,
        does: "asks for its instances to be kept; does about what the example plugin does for one child",
    },
    Guest {
        name: "second",
        expected: Expected::Works,
        does: "does what myapple does and adds revision=2 to the data of every child: another revision of it",
    },
    Guest {
        name: "selecting",
        expected: Expected::Works,
        does: "reads Secrets by 250 selectors of which each selects all; it behaves well",
    },
    Guest {
        name: "slow",
        expected: Expected::Works,
        does: "computes for some 10 ms times spec.quantity before it answers; it behaves well",
    },
    Guest {
        name: "spelling",
        expected: Expected::Works,
        does: "writes spec.color into the child <name>-child, the ConfigMap <name>-applied through the client, and condition Spelled",
    },
    Guest {
        name: "sprawling",
        expected: Expected::Works,
        does: "has 256 controllers, of which 255 are for ConfigMaps and find nothing to do; it behaves well",
    },
    Guest {
        name: "stepping",
        expected: Expected::Works,
        does: "changes its child <name>-steps at each call, spec.quantity times in all; silent, failing and panicking ones change it once",
    },
    Guest { name: "tabulating", expected: Expected::Contained, does: "for bad-* makes a table larger without end" },
    Guest {
        name: "tracking",
        expected: Expected::Works,
        does: "for bad-* reads ConfigMaps by 550 long selectors of its own in each of four controllers; it behaves well otherwise",
    },
    Guest { name: "trapping", expected: Expected::Contained, does: "for bad-* panics with the message `a bad apple`" },
    Guest {
        name: "trespasser",
        expected: Expected::Works,
        does: "tries what it was not granted and says in one condition for each try what it was told; True: denied",
    },
    Guest {
        name: "waiting",
        expected: Expected::Contained,
        does: "for bad-* asks the API server for ever; its timeout is 300 ms",
    },
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::GUESTS;

    fn examples(extension: &str) -> BTreeSet<String> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let files =
            fs::read_dir(directory).expect("the directory is there").map(|file| file.expect("it can be read").path());
        let files = files.filter(|path| path.extension().is_some_and(|found| found == extension));
        files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
    }

    #[test]
    fn every_example_is_in_the_table_and_has_its_grants() {
        let names: BTreeSet<String> = GUESTS.iter().map(|guest| guest.name.to_owned()).collect();
        assert_eq!(names.len(), GUESTS.len(), "a name is there twice");
        assert_eq!(examples("rs"), names);
        assert_eq!(examples("yaml"), names);
    }

    #[test]
    fn every_example_is_built_as_a_component() {
        let manifest = include_str!("../Cargo.toml");
        for guest in GUESTS {
            let entry = format!("[[example]]\nname = \"{}\"\ncrate-type = [\"cdylib\"]\n", guest.name);
            assert!(manifest.contains(&entry), "Cargo.toml lacks\n{entry}");
        }
    }
}

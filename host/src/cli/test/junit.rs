//! Verdicts as a JUnit report, which CI systems read.

use std::fmt::Write as _;

use super::report::Verdict;

/// Returns the report. A file is a test suite.
pub(super) fn report(plugin: &str, verdicts: &[Verdict]) -> String {
    let failures = |verdicts: &[Verdict]| verdicts.iter().filter(|verdict| verdict.failure.is_some()).count();
    let seconds = |verdicts: &[Verdict]| verdicts.iter().map(|verdict| verdict.took.as_secs_f64()).sum::<f64>();
    let counts = |verdicts: &[Verdict]| {
        format!("tests=\"{}\" failures=\"{}\" time=\"{:.3}\"", verdicts.len(), failures(verdicts), seconds(verdicts))
    };
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(xml, "<testsuites name=\"{}\" {}>", escaped(plugin), counts(verdicts));
    for suite in verdicts.chunk_by(|one, next| one.file == next.file) {
        let file = suite.first().map(|verdict| escaped(&verdict.file.to_string_lossy())).unwrap_or_default();
        let _ = writeln!(xml, "  <testsuite name=\"{file}\" {}>", counts(suite));
        for Verdict { name, line, took, failure, .. } in suite {
            let _ = write!(
                xml,
                "    <testcase classname=\"{file}\" name=\"{}\" file=\"{file}\" line=\"{line}\" time=\"{:.3}\"",
                escaped(name),
                took.as_secs_f64()
            );
            let _ = match failure {
                None => writeln!(xml, "/>"),
                Some(failure) => {
                    let first = failure.lines().find(|line| !line.ends_with(':')).unwrap_or_default();
                    let (first, all) = (escaped(first), escaped(failure));
                    writeln!(xml, ">\n      <failure message=\"{first}\">{all}</failure>\n    </testcase>")
                }
            };
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

/// Escapes a text for XML. Characters that XML does not allow are left out.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;

    #[test]
    fn report_has_a_suite_for_each_file_and_the_failures() {
        let verdict = |file: &str, name: &str, failure: Option<&str>| Verdict {
            file: Path::new(file).into(),
            name: name.to_owned(),
            line: 3,
            took: Duration::from_millis(5),
            failure: failure.map(str::to_owned),
            updates: Vec::new(),
        };
        let verdicts = [
            verdict("a.yaml", "one", None),
            verdict("a.yaml", "<two>", Some("step 1:\na.yaml:9: expected \"x\"\u{1}")),
            verdict("b.yaml", "three", None),
        ];
        insta::assert_snapshot!(report("myapple", &verdicts), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="myapple" tests="3" failures="1" time="0.015">
          <testsuite name="a.yaml" tests="2" failures="1" time="0.010">
            <testcase classname="a.yaml" name="one" file="a.yaml" line="3" time="0.005"/>
            <testcase classname="a.yaml" name="&lt;two&gt;" file="a.yaml" line="3" time="0.005">
              <failure message="a.yaml:9: expected &quot;x&quot;">step 1:
        a.yaml:9: expected &quot;x&quot;</failure>
            </testcase>
          </testsuite>
          <testsuite name="b.yaml" tests="1" failures="0" time="0.005">
            <testcase classname="b.yaml" name="three" file="b.yaml" line="3" time="0.005"/>
          </testsuite>
        </testsuites>
        "#);
    }
}

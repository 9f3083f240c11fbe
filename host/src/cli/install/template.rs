//! Renders the chart's templates. They use only the part of Helm's language that this module knows, so both render the
//! same:
//!
//! | action | place |
//! |---|---|
//! | `{{- if REF }}`, `{{- if not REF }}`, `{{- else }}`, `{{- end }}` | alone on a line |
//! | `{{- toYaml REF \| nindent N }}` | alone on a line |
//! | `{{ REF }}`, `{{ REF \| quote }}`, `{{ "TEXT" }}` | anywhere in a line |

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// Renders a template with the values that `REF`s such as `.Values.image` name in `scope`.
///
/// # Errors
/// If the template has another action, or names a value that is not in `scope`.
pub(super) fn render(template: &str, scope: &Value) -> anyhow::Result<String> {
    let mut text = String::new();
    // Whether the branch of each `if` around the line is taken.
    let mut taken = Vec::new();
    for (index, line) in template.lines().enumerate() {
        render_line(line, scope, &mut taken, &mut text).with_context(|| format!("line {}: {line}", index + 1))?;
    }
    ensure!(taken.is_empty(), "an `if` has no `end`");
    Ok(text)
}

fn render_line(line: &str, scope: &Value, taken: &mut Vec<bool>, text: &mut String) -> anyhow::Result<()> {
    let Some(action) = line.trim_start().strip_prefix("{{- ") else {
        if taken.iter().all(|taken| *taken) {
            text.push_str(&inline(line, scope)?);
            text.push('\n');
        }
        return Ok(());
    };
    let action = action.strip_suffix(" }}").context("an action does not end with ` }}`")?;
    match action.split(' ').collect::<Vec<_>>()[..] {
        ["if", reference] => taken.push(is_true(find(reference, scope)?)),
        ["if", "not", reference] => taken.push(!is_true(find(reference, scope)?)),
        ["else"] => {
            let last = taken.last_mut().context("an `else` has no `if`")?;
            *last = !*last;
        }
        ["end"] => {
            taken.pop().context("an `end` has no `if`")?;
        }
        ["toYaml", reference, "|", "nindent", columns] => {
            let value = find(reference, scope)?;
            let columns: usize = columns.parse().context("`nindent` needs a number")?;
            if taken.iter().all(|taken| *taken) {
                let yaml = serde_saphyr::to_string(value).context("cannot print a value as YAML")?;
                for line in yaml.trim_end().lines() {
                    text.extend(std::iter::repeat_n(' ', columns));
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        _ => bail!("this action is not known"),
    }
    Ok(())
}

/// Replaces the actions within a line.
fn inline(line: &str, scope: &Value) -> anyhow::Result<String> {
    let (mut text, mut rest) = (String::new(), line);
    while let Some((before, action)) = rest.split_once("{{ ") {
        text.push_str(before);
        if let Some(literal) = action.strip_prefix('"') {
            let (literal, after) = literal.split_once("\" }}").context("a literal does not end")?;
            text.push_str(literal);
            rest = after;
            continue;
        }
        let (action, after) = action.split_once(" }}").context("an action does not end")?;
        let (reference, is_quoted) = match action.strip_suffix(" | quote") {
            Some(reference) => (reference, true),
            None => (action, false),
        };
        let value = match find(reference, scope)? {
            Value::String(value) => value.clone(),
            value @ (Value::Number(_) | Value::Bool(_)) => value.to_string(),
            _ => bail!("{reference} is not a single value"),
        };
        text.push_str(&if is_quoted { Value::from(value).to_string() } else { value });
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

fn find<'a>(reference: &str, scope: &'a Value) -> anyhow::Result<&'a Value> {
    ensure!(reference.starts_with('.'), "{reference} is not a reference");
    scope.pointer(&reference.replace('.', "/")).with_context(|| format!("there is no value {reference}"))
}

/// Returns what Helm takes for true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(value) => value.as_f64() != Some(0.0),
        Value::String(value) => !value.is_empty(),
        Value::Array(value) => !value.is_empty(),
        Value::Object(value) => !value.is_empty(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use pilothouse_apiserver::yaml;
    use serde_json::json;

    use super::*;

    #[test]
    fn actions_are_replaced_as_helm_does_it() {
        let scope = json!({"Values": {"name": "a\"b", "on": true, "off": "", "more": {"x": [1]}}});
        let template = "\
name: {{ .Values.name | quote }} {{ \"{{ $labels.x }}\" }}
{{- if .Values.on }}
  on: {{ .Values.on }}
  {{- if not .Values.on }}
  never: {{ .Values.more }}
  {{- else }}
  {{- toYaml .Values.more | nindent 2 }}
  {{- end }}
{{- end }}
{{- if .Values.off }}
off: true
{{- end }}
";
        let rendered = render(template, &scope).unwrap();
        assert_eq!(rendered, "name: \"a\\\"b\" {{ $labels.x }}\n  on: true\n  x:\n  - 1\n");
    }

    #[test]
    fn a_template_beyond_this_part_of_the_language_is_refused() {
        let scope = json!({"Values": {"map": {}}});
        for (template, reason) in [
            ("a\n{{- range .Values.map }}", "line 2"),
            ("{{ .Values.none }}", "no value .Values.none"),
            ("{{ .Values.map }}", "not a single value"),
            ("{{ include \"x\" . }}", "is not a reference"),
            ("{{- if .Values.map }}", "no `end`"),
            ("{{- end }}", "no `if`"),
            ("{{- else }}", "no `if`"),
            ("{{ .Values.map", "does not end"),
        ] {
            let error = format!("{:#}", render(template, &scope).unwrap_err());
            assert!(error.contains(reason), "{template}: {error}");
        }
    }

    #[test]
    fn values_are_printed_as_kubernetes_reads_them() {
        let value = json!({
            "yes": "yes", "n": "no", "octal": "0644", "number": "1e3", "empty": "", "null": "null", "date": "2026-01-01",
            "text": "two\nlines: #1\n", "tab": "\t{{", "colon": "a: b", "list": [["x"], {"a": []}, {}], "true": true,
            "underscore": "1_000", "sexagesimal": "1:20", "tilde": "~", "at": "@a", "long": "x ".repeat(200),
        });
        let text = render("{{- toYaml .v | nindent 4 }}", &json!({"v": value})).unwrap();
        assert_eq!(yaml::first(&text).unwrap().value, value, "{text}");
    }
}

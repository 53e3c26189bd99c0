//! One line of the log, as text or as a JSON object.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use log::kv::{Error, Key, Value, VisitSource};
use log::{Level, Record};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::{IS_RELAYED, LIMITED, is_json, write};
use crate::harmless::{harmless, harmless_lines, shortened};

/// Bytes of one line, parts of which may come from a compromised inner process.
pub const LINE_BYTES_MAX: usize = 4096;
/// Bytes of the message in an inner process's JSON, so that the whole fits a line even if each has to be escaped.
const RELAYED_BYTES_MAX: usize = LINE_BYTES_MAX / 2 - 512;
/// Bytes of a field: enough for a path.
const FIELD_BYTES_MAX: usize = 128;
/// Fields of one line.
const FIELDS_MAX: usize = 2;

/// The name of this process in JSON.
pub(super) static PROCESS: OnceLock<&'static str> = OnceLock::new();

/// A line of the log; text from others is harmless in it.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) level: Level,
    process: Cow<'a, str>,
    /// Whether it comes from another process, whose name precedes the text.
    is_relayed: bool,
    body: Body,
}

/// The part of a line that an inner process writes as JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Body {
    target: String,
    message: String,
    #[serde(flatten)]
    fields: Map<String, serde_json::Value>,
}

impl<'a> Line<'a> {
    /// The line for a record of this process.
    pub(super) fn of(record: &Record<'_>) -> Self {
        let mut fields = Fields(Map::new());
        // The visitor accepts everything, so there is no error.
        let _ = record.key_values().visit(&mut fields);
        let body =
            Body { target: record.target().to_owned(), message: record.args().to_string(), fields: fields.0 };
        Self { level: record.level(), process: own_name(), is_relayed: false, body: body.harmless() }
    }

    /// A line of this process without a record.
    pub(super) fn own(level: Level, message: &str) -> Self {
        let body = Body { message: message.to_owned(), ..Body::default() };
        Self { level, process: own_name(), is_relayed: false, body: body.harmless() }
    }

    /// The line of an inner process. It may be JSON only if the supervisor requested that.
    pub(super) fn relayed(process: &'a str, text: &str, is_json: bool) -> Self {
        let (level, rest) = LEVELS
            .iter()
            .find_map(|level| Some((*level, text.strip_prefix(prefix(*level))?)))
            .unwrap_or((Level::Error, text));
        let said = is_json.then(|| serde_json::from_str::<Body>(rest).ok()).flatten();
        let body = said.unwrap_or_else(|| {
            let message = rest.strip_prefix("lasthop: ").unwrap_or(rest).to_owned();
            Body { message, ..Body::default() }
        });
        Self { level, process: process.into(), is_relayed: true, body: body.harmless() }
    }

    /// Writes it to standard error; ignores failures.
    pub(super) fn write(&self) {
        write(&match (is_json(), IS_RELAYED.load(Ordering::Relaxed)) {
            (false, _) => self.text(),
            (true, false) => self.json(),
            (true, true) => self.for_relay(),
        });
    }

    fn text(&self) -> String {
        let message = &self.body.message;
        match self.is_relayed {
            true => format!("{}lasthop: {}: {message}\n", level_prefix(self.level), self.process),
            false => format!("{}lasthop: {message}\n", level_prefix(self.level)),
        }
    }

    /// The object with the time, for the supervisor's or the operator's log.
    pub(super) fn json(&self) -> String {
        let Body { target, message, fields } = &self.body;
        let mut object = Map::new();
        object.insert("time".into(), humantime::format_rfc3339_micros(SystemTime::now()).to_string().into());
        object.insert("level".into(), self.level.as_str().to_ascii_lowercase().into());
        object.insert("process".into(), self.process.trim_start_matches("the ").into());
        if !target.is_empty() {
            object.insert("target".into(), target.as_str().into());
        }
        object.insert("message".into(), message.as_str().into());
        for (key, value) in fields {
            object.entry(key.as_str()).or_insert_with(|| value.clone());
        }
        format!("{}{}\n", level_prefix(self.level), serde_json::Value::Object(object))
    }

    /// An inner process's line of JSON, to which the supervisor adds time and name.
    fn for_relay(&self) -> String {
        let Body { target, message, fields } = &self.body;
        let message = shortened(message, RELAYED_BYTES_MAX).into_owned();
        let body = Body { target: target.clone(), message, fields: fields.clone() };
        format!("{}{}\n", prefix(self.level), serde_json::to_string(&body).unwrap_or_default())
    }
}

impl Body {
    /// Truncates it, and removes characters that control a terminal.
    fn harmless(self) -> Self {
        let clean = |text: &str, bytes_max| harmless(&shortened(text, bytes_max)).into_owned();
        let fields = self.fields.iter().take(FIELDS_MAX).map(|(key, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (clean(key, FIELD_BYTES_MAX), clean(&text, FIELD_BYTES_MAX).into())
        });
        Self {
            target: clean(&self.target, FIELD_BYTES_MAX),
            message: clean(&self.message, LINE_BYTES_MAX),
            fields: fields.collect(),
        }
    }
}

struct Fields(Map<String, serde_json::Value>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        if key.as_str() != LIMITED {
            self.0.insert(key.as_str().to_owned(), value.to_string().into());
        }
        Ok(())
    }
}

/// Formats lines of text for the end of a process.
pub(super) fn failure_text(text: &str) -> String {
    format!("{}lasthop: {}\n", level_prefix(Level::Error), harmless_lines(text))
}

fn own_name<'a>() -> Cow<'a, str> {
    PROCESS.get().copied().unwrap_or("lasthop").into()
}

const LEVELS: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

/// A level as journald expects it before a line (sd-daemon(3)): syslog's priority.
fn prefix(level: Level) -> &'static str {
    match level {
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

/// The prefix, if the reader interprets it.
fn level_prefix(level: Level) -> &'static str {
    if IS_RELAYED.load(Ordering::Relaxed) || is_journal() { prefix(level) } else { "" }
}

/// Whether standard error is the journal; the variable has its device and inode (systemd.exec(5)).
pub(super) fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
        let own = rustix::fs::fstat(std::io::stderr()).map(|meta| format!("{}:{}", meta.st_dev, meta.st_ino));
        own.is_ok_and(|own| own == named)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(line: &str) -> serde_json::Value {
        assert_eq!(line.matches('\n').count(), 1, "one line: {line}");
        serde_json::from_str(line).expect("JSON")
    }

    #[test]
    fn a_record_is_text_or_an_object_with_its_fields() {
        let port = "vm1\x1b[2J";
        let fields: &[(&str, &str)] = &[(LIMITED, "true"), ("port", port)];
        let line = Line::of(
            &Record::builder()
                .level(Level::Warn)
                .target("lasthop_x")
                .key_values(&fields)
                .args(format_args!("port {port}: a\nb \"c\""))
                .build(),
        );
        assert_eq!(line.text(), "lasthop: port vm1\u{fffd}[2J: a\u{fffd}b \"c\"\n");
        let object = object(&line.json());
        assert_eq!(object["port"], "vm1\u{fffd}[2J");
        assert_eq!(object["message"], "port vm1\u{fffd}[2J: a\u{fffd}b \"c\"");
        assert_eq!((&object["level"], &object["target"]), (&"warn".into(), &"lasthop_x".into()));
        assert_eq!(object.get(LIMITED), None);
    }

    #[test]
    fn a_relayed_line_keeps_its_level_target_and_fields() {
        let inner = Line::of(
            &Record::builder()
                .level(Level::Debug)
                .target("lasthop_inner")
                .key_values(&[("port", "vm1")])
                .args(format_args!("it\\s \"so\""))
                .build(),
        );
        let told = inner.for_relay();
        assert!(told.starts_with("<7>{"), "{told}");
        let line = Line::relayed("the switch process", told.trim_end(), true);
        assert_eq!(line.level, Level::Debug);
        let object = object(&line.json());
        assert_eq!(object["process"], "switch process");
        assert_eq!((&object["target"], &object["port"]), (&"lasthop_inner".into(), &"vm1".into()));
        assert_eq!(object["message"], "it\\s \"so\"");
    }

    #[test]
    fn a_process_that_was_taken_over_says_nothing_under_another_name() {
        // Text instead of JSON, JSON instead of text, other keys, and more fields than there is room for.
        let text = Line::relayed("x", "<4>lasthop: words", true);
        assert_eq!((text.level, &*text.body.message), (Level::Warn, "words"));
        let odd = r#"<3>{"target":"t","message":"m","process":"supervisor","time":"0","level":"info"}"#;
        let line = object(&Line::relayed("the driver process", odd, true).json());
        assert_eq!((&line["process"], &line["level"]), (&"driver process".into(), &"error".into()));
        let time = line["time"].as_str().and_then(|time| humantime::parse_rfc3339(time).ok());
        assert!(time.is_some_and(|time| time.elapsed().is_ok_and(|ago| ago.as_secs() < 3600)), "{line}");
        let text = Line::relayed("the driver process", odd, false).text();
        assert!(text.starts_with("lasthop: the driver process: {\"target\""), "{text}");
        let many: String = (0..200).map(|n| format!(r#","k{n}":"{}""#, "v".repeat(2000))).collect();
        let line = format!(r#"<6>{{"target":"t","message":"m"{many}}}"#);
        assert!(Line::relayed("x", &line, true).json().len() < LINE_BYTES_MAX);
    }

    #[test]
    fn what_an_inner_process_says_fits_a_line() {
        let line = Line::own(Level::Info, &"\"".repeat(3 * LINE_BYTES_MAX));
        assert!(line.for_relay().len() <= LINE_BYTES_MAX);
        assert!(line.text().len() <= LINE_BYTES_MAX + 20);
    }
}

//! The diagnosis as text: what is broken first, with its remedy, then the chain of each vnic.

use super::Diagnosis;
use super::finding::{Finding, NOT_REACHED, State};

/// Vnics up to which each one's chain is shown even if all is well.
const CHAINS_MAX: usize = 4;

pub(super) fn text(diagnosis: &Diagnosis) -> String {
    let mut text = head(diagnosis);
    // What is wrong with them stands above.
    let is_sound = |finding: &&Finding| finding.vnic.is_none() && finding.state == State::Ok;
    for finding in diagnosis.findings.iter().filter(is_sound) {
        text.push_str(&line(finding));
    }
    let mut names: Vec<&str> =
        diagnosis.findings.iter().filter_map(|finding| finding.vnic.as_deref()).collect();
    names.dedup();
    for name in &names {
        let links: Vec<&Finding> =
            diagnosis.findings.iter().filter(|finding| finding.vnic.as_deref() == Some(name)).collect();
        text.push_str(&chain(name, &links, names.len() <= CHAINS_MAX));
    }
    text
}

/// What is broken, the first link of each vnic; or that all is well.
fn head(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in diagnosis.complaints() {
        let whose = finding.vnic.as_ref().map(|vnic| format!("{vnic} ")).unwrap_or_default();
        let name = finding.link.name();
        text.push_str(&format!("{}: {whose}{name}: {}\n", finding.state.name(), finding.text));
        if let Some(remedy) = &finding.remedy {
            text.push_str(&format!("  remedy: {remedy}\n"));
        }
    }
    if text.is_empty() {
        let vnics = diagnosis.findings.iter().filter_map(|finding| finding.vnic.as_ref());
        let count = vnics.collect::<std::collections::BTreeSet<_>>().len();
        text = format!("ok: nothing is wrong with {}\n", super::words::count(count, "vnic"));
    }
    text.push('\n');
    text
}

fn chain(name: &str, links: &[&Finding], is_long: bool) -> String {
    let marks: Vec<String> = links.iter().map(|finding| mark(finding)).collect();
    let mut text = format!("{name}: {}\n", marks.join(" - "));
    if is_long || links.iter().any(|finding| finding.state < State::Unknown) {
        // Behind the broken link there is nothing to tell.
        let known = links.iter().filter(|finding| finding.text != NOT_REACHED);
        known.for_each(|finding| text.push_str(&line(finding)));
    }
    text
}

/// A link of the drawing.
fn mark(finding: &Finding) -> String {
    let sign = match finding.state {
        State::NotOk => " NOT OK",
        State::Warning => " (!)",
        State::Unknown => " ?",
        State::Ok => " ok",
    };
    format!("{}{sign}", finding.link.name())
}

fn line(finding: &Finding) -> String {
    format!("  {:<8} {:<12} {}\n", finding.state.name(), finding.link.name(), finding.text)
}

//! The diagnosis as text: broken links first, with their remedies, then the chain of each vnic.

use super::Diagnosis;
use super::finding::{Finding, NOT_REACHED, State};
use lasthop_api::readable::count;

/// Largest number of vnics whose links all have a line; with more, only chains with a complaint are shown.
const CHAINS_MAX: usize = 4;
/// Number of complaints that are shown with their remedies.
const COMPLAINTS_MAX: usize = 10;
/// Number of vnics without a guest that have a complaint each; more have one together.
const ABSENT_MAX: usize = 3;
/// Number of their names that are shown.
const NAMES_MAX: usize = 5;

pub(super) fn text(diagnosis: &Diagnosis) -> String {
    let chains: Vec<&[Finding]> = chains(diagnosis).collect();
    let mut text = head(diagnosis, &subjects(diagnosis, &chains));
    // Faults of switch and host are shown above.
    let is_sound = |finding: &&Finding| finding.vnic.is_none() && finding.state == State::Ok;
    diagnosis.findings.iter().filter(is_sound).for_each(|finding| text.push_str(&line(finding)));
    let is_long = chains.len() <= CHAINS_MAX;
    let is_joined = absent(&diagnosis.complaints()).len() > ABSENT_MAX;
    let is_drawn = |links: &&&[Finding]| {
        let is_told =
            |finding: &Finding| finding.state < State::Unknown && !(is_joined && finding.is_absence);
        is_long || links.iter().any(is_told)
    };
    let (drawn, others): (Vec<&[Finding]>, Vec<&[Finding]>) =
        chains.iter().copied().partition(|links| is_drawn(&links));
    drawn.iter().for_each(|links| text.push_str(&chain(links, is_long)));
    let (absent, quiet): (Vec<&[Finding]>, Vec<&[Finding]>) =
        others.into_iter().partition(|links| links.iter().any(|finding| finding.is_absence));
    for (chains, state) in [(absent, "a guest"), (quiet, "complaint")] {
        if !chains.is_empty() {
            text.push_str(&format!("{} without {state}\n", subjects(diagnosis, &chains)));
        }
    }
    text
}

/// The vnics and ports that chains belong to: "2 vnics and 1 port".
fn subjects(diagnosis: &Diagnosis, chains: &[&[Finding]]) -> String {
    let ports = diagnosis.facts.as_ref().map(|facts| &facts.ports[..]).unwrap_or_default();
    let is_port = |links: &&&[Finding]| {
        let name = links.first().and_then(|finding| finding.vnic.as_deref());
        ports.iter().any(|port| Some(port.name.as_str()) == name)
    };
    let of_ports = chains.iter().filter(is_port).count();
    match (chains.len() - of_ports, of_ports) {
        (vnics, 0) => count(vnics, "vnic"),
        (0, ports) => count(ports, "port"),
        (vnics, ports) => format!("{} and {}", count(vnics, "vnic"), count(ports, "port")),
    }
}

/// A few lines; monitoring systems only show the first.
pub(super) fn text_of_switch(diagnosis: &Diagnosis) -> String {
    let (vnics, guests) = diagnosis.guests();
    let mut text = match diagnosis.complaints().is_empty() {
        true => format!("ok: the switch is well; {guests} of {} a guest\n\n", have(vnics)),
        false => head(diagnosis, &count(vnics, "vnic")),
    };
    let is_sound = |finding: &&Finding| finding.state == State::Ok;
    diagnosis.findings.iter().filter(is_sound).for_each(|finding| text.push_str(&named_line(finding)));
    text
}

fn have(vnics: usize) -> String {
    format!("{} {}", count(vnics, "vnic"), if vnics == 1 { "has" } else { "have" })
}

/// The links of each vnic.
fn chains(diagnosis: &Diagnosis) -> impl Iterator<Item = &[Finding]> {
    let groups = diagnosis.findings.chunk_by(|one, next| one.vnic == next.vnic);
    groups.filter(|links| links.iter().any(|finding| finding.vnic.is_some()))
}

/// The first broken link of each vnic, or a line that nothing is broken.
fn head(diagnosis: &Diagnosis, subjects: &str) -> String {
    let complaints = diagnosis.complaints();
    if complaints.is_empty() {
        return format!("ok: nothing is wrong with {subjects}\n\n");
    }
    let absent = absent(&complaints);
    let is_joined = |finding: &&&Finding| finding.is_absence && absent.len() > ABSENT_MAX;
    let joined = complaints.iter().position(|finding| is_joined(&finding));
    let singles = complaints.iter().filter(|finding| !is_joined(finding)).map(|finding| complaint(finding));
    let mut told: Vec<String> = singles.collect();
    if let Some(at) = joined {
        told.insert(at, complaint_of_absent(&absent));
    }
    let mut text = told.iter().take(COMPLAINTS_MAX).map(String::as_str).collect::<String>();
    if let Some(more) = told.len().checked_sub(COMPLAINTS_MAX).filter(|more| *more > 0) {
        text.push_str(&format!("and {}: lasthop doctor NAME\n", count(more, "more complaint")));
    }
    text + "\n"
}

/// The complaints about vnics whose guest is off.
fn absent<'a>(complaints: &[&'a Finding]) -> Vec<&'a Finding> {
    complaints.iter().copied().filter(|finding| finding.is_absence).collect()
}

/// One complaint about all of them.
fn complaint_of_absent(absent: &[&Finding]) -> String {
    let names = absent.iter().filter_map(|finding| finding.vnic.as_deref()).take(NAMES_MAX);
    let names = names.collect::<Vec<_>>().join(", ");
    let more = match absent.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text =
        format!("{}: {} without a guest: {names}{more}\n", State::NotOk.name(), count(absent.len(), "vnic"));
    let remedy = absent.first().and_then(|finding| finding.remedy.as_ref());
    text + &remedy.map(|remedy| format!("  remedy: for one of them: {remedy}\n")).unwrap_or_default()
}

fn complaint(finding: &Finding) -> String {
    let whose = finding.vnic.as_ref().map(|vnic| format!("{vnic} ")).unwrap_or_default();
    let text = format!("{}: {whose}{}: {}\n", finding.state.name(), finding.link.name(), finding.text);
    match &finding.remedy {
        Some(remedy) => format!("{text}  remedy: {remedy}\n"),
        None => text,
    }
}

fn chain(links: &[Finding], is_long: bool) -> String {
    let marks: Vec<String> = links.iter().map(mark).collect();
    let name = links.first().and_then(|finding| finding.vnic.as_deref()).unwrap_or_default();
    let mut text = format!("{name}: {}\n", marks.join(" - "));
    if is_long {
        // After the broken link there is nothing to report.
        let known = links.iter().filter(|finding| finding.text != NOT_REACHED);
        known.for_each(|finding| text.push_str(&line(finding)));
    }
    text
}

/// A link in the drawing.
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
    let text = format!("  {:<8} {:<12} {}\n", finding.state.name(), finding.link.name(), finding.text);
    // The remedies of complaints stand at the top.
    match &finding.remedy {
        Some(remedy) if finding.state == State::Ok => format!("{text}{:<24}remedy: {remedy}\n", ""),
        _ => text,
    }
}

/// A line with the port's name, for several ports.
fn named_line(finding: &Finding) -> String {
    match &finding.vnic {
        Some(name) => {
            format!("  {:<8} {:<12} {name}: {}\n", finding.state.name(), finding.link.name(), finding.text)
        }
        None => line(finding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Link, Verdict};

    fn diagnosis(vnics: usize, broken: usize) -> Diagnosis {
        let mut findings = vec![Verdict::ok("runs").about(None, Link::Switch)];
        for number in 0..vnics {
            let peer =
                if number < broken { Verdict::broken("nobody", "somebody") } else { Verdict::ok("qemu") };
            let name = format!("v{number}");
            findings.push(Verdict::ok("/s").about(Some(&name), Link::Socket));
            findings.push(peer.about(Some(&name), Link::Peer));
            findings.push(Verdict::not_reached().about(Some(&name), Link::Memory));
        }
        Diagnosis { ok: broken == 0, findings, facts: None }
    }

    #[test]
    fn the_broken_link_comes_first_and_what_lies_behind_it_is_drawn_only() {
        let expected = "not ok: v0 peer: nobody\n  remedy: somebody\n\n  \
                        ok       switch       runs\n\
                        v0: socket ok - peer NOT OK - memory ?\n  \
                        ok       socket       /s\n  \
                        not ok   peer         nobody\n";
        assert_eq!(text(&diagnosis(1, 1)), expected);
    }

    #[test]
    fn a_hint_is_no_complaint_and_has_its_remedy() {
        let findings = vec![Verdict::hint("shared", "share less").about(None, Link::Host)];
        let diagnosis = Diagnosis { ok: true, findings, facts: None };
        let lines = "  ok       host         shared\n                        remedy: share less\n";
        assert_eq!(text(&diagnosis), format!("ok: nothing is wrong with 0 vnics\n\n{lines}"));
        assert!(text_of_switch(&diagnosis).ends_with(lines));
        assert_eq!(diagnosis.severity(), 0);
    }

    #[test]
    fn links_of_ports_are_named_where_the_switch_is_judged() {
        let findings = vec![
            Verdict::ok("runs").about(None, Link::Switch),
            Verdict::ok("is up").about(Some("eth1"), Link::Device),
        ];
        let text = text_of_switch(&Diagnosis { ok: true, findings, facts: None });
        assert!(
            text.ends_with("  ok       switch       runs\n  ok       device       eth1: is up\n"),
            "{text}"
        );
    }

    #[test]
    fn guests_that_are_off_do_not_hide_faults() {
        let mut findings = Vec::new();
        for number in 0..500 {
            let (name, peer) = (format!("v{number}"), Verdict::absent("no guest", "start it"));
            let peer = if number < 498 { peer } else { Verdict::broken("a fault", "mend it") };
            findings.push(peer.about(Some(&name), Link::Peer));
        }
        findings.push(Verdict::warning("near a limit", "raise it").about(None, Link::Host));
        let expected = "not ok: v498 peer: a fault\n  remedy: mend it\n\
                        not ok: v499 peer: a fault\n  remedy: mend it\n\
                        not ok: 498 vnics without a guest: v0, v1, v2, v3, v4 and 493 more\n  \
                        remedy: for one of them: start it\n\
                        warning: host: near a limit\n  remedy: raise it\n\n\
                        v498: peer NOT OK\nv499: peer NOT OK\n498 vnics without a guest\n";
        let told = Diagnosis { ok: false, findings, facts: None };
        assert_eq!(text(&told), expected);
        let few: Vec<Finding> = told.findings.into_iter().skip(496).collect();
        let told = text(&Diagnosis { ok: false, findings: few, facts: None });
        assert!(told.starts_with("not ok: v498 peer: a fault\n"), "{told}");
        assert!(told.contains("not ok: v496 peer: no guest\n  remedy: start it\n"), "{told}");
    }

    #[test]
    fn many_vnics_have_a_line_each_at_most() {
        let text = text(&diagnosis(100, 60));
        assert_eq!(text.matches("remedy: ").count(), COMPLAINTS_MAX);
        assert!(text.contains("and 50 more complaints: lasthop doctor NAME\n"), "{text}");
        assert!(
            text.ends_with("v59: socket ok - peer NOT OK - memory ?\n40 vnics without complaint\n"),
            "{text}"
        );
    }
}

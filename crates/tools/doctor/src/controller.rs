//! Checks the controller process, which decides about packets without a flow.

use super::finding::{Restarts, Verdict, YOUNG_MS, stopped};
use lasthop_api::facts::{ControllerFacts, ExternalFacts};
use lasthop_api::readable::{count, time};
use lasthop_api::report::ControlClient;
use lasthop_runtime::procfs;

/// Judges the controller process by its present facts and by those `before`.
pub(super) fn controller(before: Option<&ControllerFacts>, facts: &ControllerFacts) -> Verdict {
    let restarts = Restarts {
        process: "controller",
        number: facts.restarts,
        last_end: facts.last_end.as_ref(),
        remedy: "see the log of lasthop run, and report it as a bug; installed flows stay in use meanwhile",
    };
    let Some((pid, up_ms)) = facts.pid.zip(facts.up_ms) else { return restarts.down() };
    let effect = "packets of new flows are lost or late";
    if let Some(stopped) = stopped("controller", pid, effect) {
        return stopped;
    }
    if !facts.has_answered {
        return Verdict::broken(
            format!("the controller process {pid} does not answer: {effect}"),
            format!(
                "check whether it is short of CPU; after kill {pid} another one starts and takes over its flows"
            ),
        );
    }
    if facts.restarts > 0 && up_ms < YOUNG_MS {
        return restarts.young("ended");
    }
    let of = |facts: &ControllerFacts, name: &str| facts.counters.get(name).copied().unwrap_or(0);
    let (held, dropped) = (of(facts, "flows_held"), of(facts, "misses_dropped"));
    let flows = count(usize::try_from(held).unwrap_or(usize::MAX), "flow");
    let text = format!("controller process {pid} for {}, {flows}, {}", time(up_ms), restarts.text());
    let limited = of(facts, "flow_limit_hit");
    let limited_now = limited.saturating_sub(before.map_or(limited, |before| of(before, "flow_limit_hit")));
    if limited_now > 0 {
        return Verdict::warning(
            format!(
                "the flow limit is reached: {limited_now} packets got no flow (now; {limited} in all); {text}"
            ),
            "lasthop flow show lists the flows; for guests that talk to very many others use module = \"bridge\"",
        );
    }
    if dropped > 0 {
        return Verdict::ok(format!("{text}; {dropped} packets without a flow got no answer"));
    }
    Verdict::ok(text)
}

fn names(clients: &[ControlClient]) -> String {
    clients.iter().map(ControlClient::text).collect::<Vec<_>>().join("; ")
}

/// Judges the external controller of switches with `controller = "external"`.
pub(super) fn external(facts: &ExternalFacts) -> Verdict {
    let ExternalFacts { is_secure, is_asked, clients, .. } = facts;
    let stopped = clients.iter().filter_map(|client| client.pid).find(|pid| procfs::is_stopped(*pid));
    if let Some(pid) = stopped {
        return Verdict::broken(
            format!("the controller {} is stopped (T): packets of new flows are lost", names(clients)),
            format!("continue it: kill -CONT {pid}"),
        );
    }
    let nobody = "no controller is connected to datapath.sock";
    let remedy = "start it: lasthop ovs run";
    match (is_asked, is_secure) {
        (true, _) if clients.is_empty() => Verdict::ok("a controller is connected to datapath.sock"),
        (true, _) => Verdict::ok(format!("external: {}", names(clients))),
        (false, true) => {
            Verdict::broken(format!("{nobody}, and fail-mode=secure drops packets without a flow"), remedy)
        }
        (false, false) => {
            Verdict::warning(format!("{nobody}: no process decides about packets without a flow"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;
    use lasthop_api::report::Ended;

    fn facts() -> ControllerFacts {
        let counters = [("flows_held".to_owned(), 7)].into();
        ControllerFacts {
            pid: Some(5),
            up_ms: Some(90_000),
            has_answered: true,
            counters,
            ..Default::default()
        }
    }

    #[test]
    fn one_that_is_well_says_what_it_holds() {
        let verdict = controller(None, &facts());
        assert_eq!((verdict.state, verdict.text.contains("7 flows")), (State::Ok, true), "{}", verdict.text);
    }

    #[test]
    fn a_limit_that_was_hit_earlier_is_over() {
        let hit =
            |count| ControllerFacts { counters: [("flow_limit_hit".to_owned(), count)].into(), ..facts() };
        assert_eq!(controller(Some(&hit(5)), &hit(5)).state, State::Ok);
        let verdict = controller(Some(&hit(5)), &hit(8));
        assert_eq!(verdict.state, State::Warning);
        assert!(verdict.text.contains("3 packets got no flow (now; 8 in all)"), "{}", verdict.text);
    }

    #[test]
    fn nobody_there_is_broken_where_packets_are_dropped() {
        let facts = |is_secure, is_asked| ExternalFacts {
            switches: vec!["a".into()],
            is_secure,
            is_asked,
            clients: Vec::new(),
        };
        assert_eq!(external(&facts(true, true)).state, State::Ok);
        assert_eq!(external(&facts(false, false)).state, State::Warning);
        let verdict = external(&facts(true, false));
        assert_eq!(verdict.state, State::NotOk);
        assert!(verdict.text.ends_with("drops packets without a flow"), "{}", verdict.text);
        assert_eq!(verdict.remedy.as_deref(), Some("start it: lasthop ovs run"));
    }

    #[test]
    fn one_that_is_dead_deaf_or_young_is_told() {
        let died = || Some(Ended { why: "was killed".into(), ago_ms: 10 });
        let dead = ControllerFacts { pid: None, restarts: 3, last_end: died(), ..facts() };
        let deaf = ControllerFacts { has_answered: false, ..facts() };
        let young = ControllerFacts { up_ms: Some(10), restarts: 1, last_end: died(), ..facts() };
        let cases = [(dead, "does not stay up"), (deaf, "does not answer"), (young, "was killed")];
        for (facts, words) in cases {
            let verdict = controller(None, &facts);
            assert!(verdict.state != State::Ok && verdict.text.contains(words), "{}", verdict.text);
        }
    }
}

//! `lasthop sched`: the view of the host's scheduler, and the policies that use it.

use std::process::ExitCode;

use serde_json::{Value, json};

use lasthop_api::sched::{PolicyChange, SchedReport, SchedTrace};
use lasthop_runtime::fault::Fault;

use super::SchedCommand;
use super::ask::ApiRequest;
use super::client::ask;
use crate::show;

impl ApiRequest {
    pub(super) fn sched(&self, command: SchedCommand) -> Result<ExitCode, Fault> {
        match command {
            SchedCommand::Show => {
                let report: SchedReport = ask(&self.dir, "sched.show", &json!({}))?;
                self.show(&report, show::sched)
            }
            SchedCommand::Trace => {
                let trace: SchedTrace = ask(&self.dir, "sched.trace", &json!({}))?;
                self.show(&trace, show::sched_trace)
            }
            SchedCommand::Set { change } => {
                let done: Value = ask(&self.dir, "sched.set", &change)?;
                let PolicyChange { policy, mode } = change;
                self.show(&done, |_| format!("policy {policy} is {mode}"))
            }
        }
    }
}

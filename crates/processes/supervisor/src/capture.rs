//! The methods `capture` and `profile`: the switch process gets the client's connection, and writes the results to it.

use serde_json::{Value, json};

use lasthop_api::capture::CaptureSpec;
use lasthop_api::orders::Order;
use lasthop_api::profile::ProfileSpec;
use lasthop_api::rpc;
use lasthop_listeners::{ApiClients, Caller};
use lasthop_runtime::fault::{Fault, Kind};

use super::Outputs;
use super::datapath_clients::DatapathClients;
use super::port_table::PortTable;
use super::question::{OrderPurpose, switch_process_down};

/// A result that is written to a client over time.
pub(super) struct Stream {
    /// The first reply to its client.
    answer: Value,
    /// Makes the order; the argument is the line with the reply.
    order: Box<dyn FnOnce(String) -> Order>,
}

impl Stream {
    /// The stream that the method requests.
    pub(super) fn asked(method: &str, params: Value, ports: &PortTable) -> Result<Self, Fault> {
        match method {
            "capture" => Self::capture(&rpc::params(params)?, ports),
            _ => Self::profile(&rpc::params(params)?),
        }
    }

    /// A capture: everything after the reply is the capture.
    fn capture(spec: &CaptureSpec, ports: &PortTable) -> Result<Self, Fault> {
        spec.check()?;
        for name in &spec.names {
            ports.find(name)?;
        }
        if ports.all.is_empty() {
            let why = "there is no port; make one first: lasthop port add NAME,backend=vhost-user";
            return Err(Fault::new(Kind::NoSuchVnic, why));
        }
        let (answer, spec) = (json!({"interfaces": ports.interfaces(spec)}), spec.clone());
        Ok(Self { answer, order: Box::new(|greeting| Order::Capture { spec, greeting }) })
    }

    /// A profile: one line after the reply.
    fn profile(spec: &ProfileSpec) -> Result<Self, Fault> {
        spec.check()?;
        let answer = json!({"duration_s": spec.duration_s, "every": spec.every()});
        let spec = spec.clone();
        Ok(Self { answer, order: Box::new(|greeting| Order::Profile { spec, greeting }) })
    }

    /// Passes this client's connection to the switch process, which sends the reply: the supervisor sends none.
    pub(super) fn order(
        self,
        caller: &Caller,
        clients: &mut ApiClients,
        datapath_clients: &mut DatapathClients,
        out: &mut Outputs,
    ) -> Result<Option<Value>, Fault> {
        if !out.switch_process.process.is_up() {
            return Err(switch_process_down());
        }
        // A client that is gone needs no reply, but the next one of its requests is served after one.
        let Some(shared) = clients.share(caller) else {
            return Ok(Some(self.answer));
        };
        let failed = |error| Fault::internal("share the connection", error);
        let fd = shared.map_err(failed)?;
        datapath_clients.keep(&fd, &out.poller).map_err(failed)?;
        let greeting =
            caller.id.as_ref().map(|id| rpc::write_answer(id, &Ok(self.answer))).unwrap_or_default();
        let greeting = String::from_utf8_lossy(&greeting).into_owned();
        out.switch_process.order_with(
            (self.order)(greeting),
            vec![fd],
            OrderPurpose::Streamed,
            Some(caller.clone()),
        );
        Ok(None)
    }
}

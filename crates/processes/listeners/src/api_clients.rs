//! The clients of the API: their requests, and the answers to them.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use lasthop_foreign::ForeignFd;
use serde_json::Value;

use lasthop_api::port::in_vnic_form;
use lasthop_api::rpc;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::{Interest, Poller};

use super::access::SocketAccess;
use super::control::{ApiSources, Control, RequestLine};
use super::sockets::ListenSocket;

/// The client that gets the answer.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its number.
    pub client: u32,
    /// The request's id; `None` if no answer is wanted.
    pub id: Option<Value>,
    /// Whether it asked by a method `vnic.…`, which has its own form of reports.
    pub in_vnic_form: bool,
}

/// The control socket until the switch ends, and clients with unwritten answers.
#[derive(Debug)]
pub struct ApiClients {
    control: Option<Control>,
    /// Clients that were answered last.
    answered: VecDeque<u32>,
}

impl ApiClients {
    /// Listens at `path`, for our own user and for those that `access` names. `kept` is the socket of the previous
    /// supervisor.
    pub fn open(
        path: &Path,
        access: SocketAccess,
        kept: Option<ListenSocket>,
        sources: ApiSources,
        poller: &Poller,
    ) -> Result<Self, Fault> {
        let control = Control::open(path, access, kept, sources)?;
        poller.add(&control, sources.socket, Interest::READ)?;
        Ok(Self { control: Some(control), answered: VecDeque::new() })
    }

    /// Closes the socket and all clients.
    pub fn close(&mut self) {
        self.control = None;
        self.answered.clear();
    }

    /// Accepts new clients.
    pub fn accept(&mut self, poller: &Poller) {
        if let Some(control) = &mut self.control {
            control.accept(poller);
        }
    }

    /// The line of a client to serve now: it sent something, or has gone.
    pub fn read(&mut self, client: u32, is_over: bool, poller: &Poller) -> Option<RequestLine> {
        self.control.as_mut()?.read(client, is_over, poller)
    }

    /// Writes answers, until one of these clients has sent another request.
    pub fn next_line(&mut self, poller: &Poller) -> Option<RequestLine> {
        let control = self.control.as_mut()?;
        std::iter::from_fn(|| self.answered.pop_front()).find_map(|client| control.proceed(client, poller))
    }

    /// Answers a request, if an answer is wanted.
    pub fn answer(&mut self, caller: Caller, result: Result<Value, Fault>) {
        let result = if caller.in_vnic_form { result.map(in_vnic_form) } else { result };
        let line = caller.id.map(|id| rpc::write_answer(&id, &result)).unwrap_or_default();
        if let Some(control) = &mut self.control {
            control.answer(caller.client, line);
            self.answered.push_back(caller.client);
        }
    }

    /// As `answer`, if there is an answer.
    pub fn answer_any(&mut self, answer: Option<(Caller, Result<Value, Fault>)>) {
        answer.into_iter().for_each(|(caller, result)| self.answer(caller, result));
    }

    /// Whether a client may also choose which programs run here.
    pub fn is_owner(&self, caller: &Caller) -> bool {
        self.control.as_ref().is_some_and(|control| control.is_owner(caller.client))
    }

    /// Duplicates a client's connection; `None` if it has gone.
    pub fn share(&self, caller: &Caller) -> Option<std::io::Result<ForeignFd>> {
        self.control.as_ref().and_then(|control| control.share(caller.client))
    }

    /// Ends our part of a client's connection, which another process serves from now on.
    pub fn hand_over(&mut self, caller: &Caller, poller: &Poller) {
        if let Some(control) = &mut self.control {
            control.hand_over(caller.client, poller);
        }
    }

    /// The control socket, and device and inode of its file.
    pub fn listening(&self) -> Option<(&ListenSocket, (u64, u64))> {
        self.control.as_ref().and_then(Control::listening)
    }

    /// Leaves the socket file to the next supervisor.
    pub fn leave_socket(&mut self) {
        self.control.iter_mut().for_each(Control::leave_socket);
    }

    /// When [`Self::next_line`] or [`Self::expire`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        if !self.answered.is_empty() {
            return Some(Instant::now());
        }
        self.control.as_ref().and_then(Control::due)
    }

    /// Drops clients that do not read, and accepts new ones again after a pause.
    pub fn expire(&mut self, now: Instant, poller: &Poller) {
        if let Some(control) = &mut self.control {
            control.expire(now, poller);
        }
    }
}

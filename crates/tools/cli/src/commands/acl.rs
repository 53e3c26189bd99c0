//! `lasthop acl`: rules about connections.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use ipnet::IpNet;
use serde_json::{Value, json};

use lasthop_api::acl::{AclAction, AclDirection, AclProtocol, AclRule, PortPatterns, PortRanges, RuleName};
use lasthop_api::fdb::unicast;
use lasthop_api::groups::GroupNames;
use lasthop_api::report::{AclLine, AclReport};
use lasthop_module_api::{Mac, Vid};
use lasthop_runtime::fault::Fault;

use super::ask::ApiRequest;
use super::client::ask;
use crate::show;

#[derive(Debug, Subcommand)]
pub(super) enum AclCommand {
    /// List the rules in their order: the first one that applies to a connection decides, and without one it is allowed
    List {
        /// Only rules about this port
        #[arg(long, value_name = "NAME")]
        port: Option<String>,
    },
    /// Add a rule: lasthop acl add https --port web1 --direction ingress --action allow --protocol tcp --dport 443
    Add(Box<AclAddArgs>),
    /// Delete rules
    Del {
        /// Their names
        #[arg(required = true)]
        names: Vec<RuleName>,
    },
}

#[derive(Debug, Args)]
pub(super) struct AclAddArgs {
    /// Unique name of the rule
    name: RuleName,
    /// Ports that it protects; * stands for letters: 'web*'. May be repeated
    #[arg(long, value_name = "NAME")]
    port: Vec<String>,
    /// Groups of ports that it protects (groups=NAME). May be repeated
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Where the connection comes from: ingress is to the port, egress is from it
    #[arg(long, value_enum)]
    direction: AclDirection,
    /// Allow or deny the connection
    #[arg(long, value_enum)]
    action: AclAction,
    /// tcp, udp, icmp, icmp6, sctp, arp, or an IP protocol by number [default: all but ARP, neighbour discovery and DHCP answers]
    #[arg(long)]
    protocol: Option<AclProtocol>,
    /// Addresses of the other side: 10.0.0.0/8
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    remote: Option<IpNet>,
    /// Groups of the other side, by their ports' addresses=. May be repeated
    #[arg(long, value_name = "NAME")]
    remote_group: Vec<String>,
    /// Addresses of the port itself
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    local: Option<IpNet>,
    /// Source ports: 1024-65535
    #[arg(long, value_name = "PORTS")]
    sport: Option<PortRanges>,
    /// Destination ports: 443, or 80,8000-8080
    #[arg(long, value_name = "PORTS")]
    dport: Option<PortRanges>,
    /// Type of ICMP or ICMPv6: 8 is an echo request
    #[arg(long, value_name = "NUMBER")]
    icmp_type: Option<u8>,
    /// Code of ICMP or ICMPv6
    #[arg(long, value_name = "NUMBER")]
    icmp_code: Option<u8>,
    /// Ethernet address of the other side
    #[arg(long, value_name = "MAC", value_parser = unicast)]
    remote_mac: Option<Mac>,
    /// Only in this VLAN
    #[arg(long, value_name = "VID")]
    vlan: Option<Vid>,
    /// Log connections that the rule denies
    #[arg(long)]
    log: bool,
    /// Put it in front of this rule [default: behind all]
    #[arg(long, value_name = "RULE")]
    before: Option<RuleName>,
}

/// Parses a prefix, or a single address.
fn prefix(text: &str) -> Result<IpNet, String> {
    let one = || text.parse().map(|address: std::net::IpAddr| IpNet::from(address));
    let refusal = |_| format!("\"{text}\" is no IP prefix such as 10.0.0.0/8 or fd00::/64");
    text.parse().or_else(|_| one()).map_err(refusal)
}

impl AclAddArgs {
    fn rule(self) -> Result<(AclRule, Option<RuleName>), Fault> {
        let Self { name, port, direction, action, protocol, remote, local, sport, dport, .. } = self;
        let Self { icmp_type, icmp_code, remote_mac, vlan, log, before, group, remote_group, .. } = self;
        let port = if port.is_empty() { PortPatterns::default() } else { PortPatterns::new(port)? };
        let (group, remote_group) = (GroupNames::new(group)?, GroupNames::new(remote_group)?);
        let rule = AclRule {
            name,
            port,
            group,
            direction,
            action,
            protocol,
            remote,
            remote_group,
            local,
            sport,
            dport,
            icmp_type,
            icmp_code,
            remote_mac,
            vlan,
            log,
        };
        Ok((rule, before))
    }
}

impl ApiRequest {
    pub(super) fn acl(&self, command: AclCommand) -> Result<ExitCode, Fault> {
        match command {
            AclCommand::List { port } => {
                let mut report: AclReport = ask(&self.dir, "acl.list", &json!({}))?;
                if let Some(port) = port {
                    report.rules.retain(|line| line.rule.port.have(&port) || line.ports.contains(&port));
                }
                self.show(&report, show::acl)
            }
            AclCommand::Add(args) => {
                let (rule, before) = args.rule()?;
                let mut params = json!({"rule": rule});
                if let Some(before) = before {
                    params["before"] = json!(before);
                }
                let added: AclLine = ask(&self.dir, "acl.add", &params)?;
                self.show(&added, show::acl_added)
            }
            AclCommand::Del { names } => {
                for name in &names {
                    ask::<Value>(&self.dir, "acl.del", &json!({"name": name}))?;
                }
                let names: Vec<&str> = names.iter().map(RuleName::as_str).collect();
                self.show(&true, |_| format!("deleted {}", names.join(", ")))
            }
        }
    }
}

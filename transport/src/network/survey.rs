//! Asks several hosts at once whether they answer on one rail: who else cannot be reached tells what
//! is broken.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::RailAddress;
use super::detect::{Knock, Reply};
use crate::clock;
use crate::verbs::soft::socket::Binding;

/// How long to wait for the first question and for its repetition: one packet may be lost.
const PATIENCE: [Duration; 2] = [Duration::from_millis(150), Duration::from_millis(350)];

/// Which of `hosts` answer when they are asked from `rail`. Their kernels do, whatever their processes
/// are busy with. Takes half a second at most, and only as long as somebody has not answered.
#[must_use]
pub fn survey(rail: &RailAddress, hosts: &[SocketAddr]) -> Vec<bool> {
    let binding = Binding { address: rail.address, interface: rail.interface.clone() };
    let mut answered = vec![false; hosts.len()];
    for patience in PATIENCE {
        ask(&binding, hosts, patience, &mut answered);
    }
    answered
}

/// Asks those who have not answered.
fn ask(binding: &Binding, hosts: &[SocketAddr], patience: Duration, answered: &mut [bool]) {
    let end = clock::now() + patience;
    let mut open: Vec<(usize, Knock)> = Vec::new();
    for host in (0..hosts.len()).filter(|host| !answered[*host]).collect::<Vec<_>>() {
        match Knock::probe(binding, hosts[host]) {
            Ok(knock) => open.push((host, knock)),
            Err(reply) => answered[host] = is_answer(reply),
        }
    }
    while !open.is_empty() {
        let left = end.saturating_duration_since(clock::now());
        if left.is_zero() {
            return;
        }
        let mut polled: Vec<PollFd<'_>> =
            open.iter().map(|(_, knock)| PollFd::new(knock, PollFlags::OUT)).collect();
        // Interrupted or not, everything is looked at afterwards.
        let _ = poll(&mut polled, Timespec::try_from(left).ok().as_ref());
        open.retain(|(host, knock)| {
            let reply = knock.reply();
            answered[*host] = reply.is_some_and(is_answer);
            reply.is_none()
        });
    }
}

fn is_answer(reply: Reply) -> bool {
    matches!(reply, Reply::Accepted | Reply::Refused)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn kernels_answer_and_nobody_else_does() {
        let home = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let rail = RailAddress { name: "lo".into(), address: home, interface: None, capacity: 1.0 };
        let listener = TcpListener::bind((home, 0)).expect("a port is free");
        let there = listener.local_addr().expect("it is bound");
        let closed = TcpListener::bind((home, 0)).and_then(|gone| gone.local_addr());
        let closed = closed.expect("a port is free");
        // From the loopback address there is no way to a network reserved for documentation.
        let nowhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9));
        assert_eq!(survey(&rail, &[there, nowhere, closed]), [true, false, true]);
        assert!(survey(&rail, &[]).is_empty());
    }
}

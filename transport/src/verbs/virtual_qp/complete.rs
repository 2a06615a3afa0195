//! What comes back from the rails, and what the application is told.

use ccl_core::failover::queue::{
    Cause, Input, Sequence,
    atomic::{Answer, Step},
};

use super::super::{Completion, Opcode, ReceiveRequest, State, Status, WorkRequest};
use super::control::{HELLO_WORDS, Hello, WORD, load_words, read_mail};
use super::queue_pair::{VirtualQp, rail_name};
use super::rail::{Condition, RailEnd, Tag};
use crate::TransportError;

impl VirtualQp {
    /// Takes what has come back on a rail; tells whether anything moved.
    pub(super) fn poll_rail(&mut self, rail: usize, arrived: &mut Vec<Completion>) -> bool {
        let mut moved = self.rails[rail].poll(arrived);
        for completion in arrived.drain(..) {
            self.came_back(rail, &completion);
        }
        if self.rails[rail].condition == Condition::Attached {
            // Where writes are executed by polls, one that found nothing has executed none.
            if moved || self.rails[rail].is_written_to_alone() {
                moved |= self.hear(rail);
            }
            self.rails[rail].send_mail();
            self.look_for_faults(rail);
        }
        if self.rails[rail].finish_fence() {
            self.feed(Input::Drained(rail_name(rail)));
            moved = true;
        }
        moved
    }

    fn hear(&mut self, rail: usize) -> bool {
        let end = &mut self.rails[rail];
        let offset = end.layout.mail_in(rail);
        let mail = end.hello.and_then(|_| read_mail(&end.control, offset, end.mail.heard));
        let Some((serial, message)) = mail else { return false };
        end.mail.heard = serial;
        match message {
            Some(message) => self.feed(Input::Heard(rail_name(rail), message)),
            None => {
                let text = format!("rail {rail}: not a message");
                self.fault.get_or_insert(TransportError::Protocol(text));
                self.feed(Input::Refused(None));
            }
        }
        true
    }

    /// A rail that broke is left; what the peer must not do, or refused, no other rail would mend.
    fn look_for_faults(&mut self, rail: usize) {
        let Some(pair) = &self.rails[rail].pair else { return };
        if pair.state() != State::Error {
            return;
        }
        match pair.fault() {
            Some(TransportError::Protocol(_) | TransportError::Refused(_)) => {
                self.feed(Input::Refused(None));
            }
            Some(
                TransportError::PeerGone(_)
                | TransportError::Severed(_)
                | TransportError::Unrepaired(_)
                | TransportError::TimedOut(_)
                | TransportError::System { .. },
            )
            | None => self.feed(Input::Failed(rail_name(rail))),
        }
    }

    fn came_back(&mut self, rail: usize, completion: &Completion) {
        let tag = Tag::decode(completion.id);
        match completion.status {
            Status::Success => self.succeeded(rail, tag, completion),
            Status::Flushed | Status::RetryExceeded => {}
            Status::LocalLength
            | Status::LocalProtection
            | Status::RemoteInvalidRequest
            | Status::RemoteAccess => self.was_refused(tag, completion),
        }
    }

    fn succeeded(&mut self, rail: usize, tag: Tag, completion: &Completion) {
        match tag {
            Tag::Request(sequence) => self.feed(Input::Executed(sequence)),
            Tag::Receive(_) => self.received(completion),
            Tag::Step => self.stepped(rail, completion.opcode),
            Tag::Log => {
                let end = &self.rails[rail];
                let offset = end.layout.log_read();
                let words: Vec<u64> = (0..end.log_entries())
                    .map(|entry| end.control.load(offset + entry * WORD))
                    .collect();
                self.feed(Input::Log(rail_name(rail), &words));
            }
            Tag::Table => {
                self.rails[rail].table_arrived();
                self.gather(|this| this.post_pending(rail));
            }
            Tag::HelloReceived => {
                let end = &self.rails[rail];
                let words: [u64; HELLO_WORDS] = load_words(&end.control, end.layout.hello_in(rail));
                self.greeted(rail, Hello::decode(words));
            }
            Tag::Mail | Tag::HelloSent | Tag::RequestPart(_) | Tag::StepPart | Tag::MailPart => {}
        }
    }

    /// The answer to a step is in the scratch memory.
    fn stepped(&mut self, rail: usize, opcode: Opcode) {
        let Some(step) = self.rails[rail].step.take() else { return };
        let (memory, layout) = (&self.rails[rail].control, self.rails[rail].layout);
        let answer = match (opcode, matches!(step, Step::Settle { .. })) {
            (Opcode::Read, _) => {
                let [value, status] = load_words(memory, layout.record_in());
                Answer::Record { value, status }
            }
            (_, true) => Answer::Settled,
            (_, false) => Answer::Word(memory.load(layout.word_in())),
        };
        self.feed(Input::Answered(answer));
    }

    fn received(&mut self, completion: &Completion) {
        let Some(receive) = self.receives.pop_front() else { return };
        self.first_receive += 1;
        self.ready.push(Completion { id: receive.id, ..*completion });
        self.feed(Input::Delivered);
    }

    fn was_refused(&mut self, tag: Tag, completion: &Completion) {
        match tag {
            Tag::Request(sequence) | Tag::RequestPart(sequence) => {
                self.refuse(Some(sequence), completion.status);
            }
            Tag::Receive(sequence) => {
                if sequence.0 == self.first_receive
                    && let Some(receive) = self.receives.pop_front()
                {
                    self.first_receive += 1;
                    self.ready.push(Completion { id: receive.id, ..*completion });
                }
                self.refuse(None, completion.status);
            }
            Tag::Step | Tag::StepPart => {
                let sequence = Sequence(self.first_request);
                self.refuse(Some(sequence), completion.status);
            }
            Tag::Mail
            | Tag::MailPart
            | Tag::Log
            | Tag::Table
            | Tag::HelloSent
            | Tag::HelloReceived => self.refuse(None, completion.status),
        }
    }

    /// Tells the application that its oldest request is done.
    pub(super) fn complete(&mut self, sequence: Sequence, result: Option<u64>) {
        assert_eq!(sequence.0, self.first_request, "requests complete in order");
        let Some(request) = self.requests.pop_front() else { return };
        self.first_request += 1;
        if let Some(word) = result {
            let segment = request.operation.segment();
            if let Some(memory) = self.shared.keys.result(segment) {
                memory.store(segment.offset, word);
            }
        }
        if request.signalled {
            self.ready.push(Completion::of(&request, Status::Success));
        }
    }

    /// The machine is over: says why, and which request is to blame.
    pub(super) fn end(&mut self, cause: Cause) {
        let culprit = match cause {
            Cause::Refused(sequence) => self
                .refusal
                .or_else(|| sequence.map(|sequence| (sequence, Status::RemoteInvalidRequest))),
            Cause::AtomicOutstanding(sequence) => Some((sequence, Status::RetryExceeded)),
            Cause::NoRail | Cause::NoAnswer | Cause::NumbersUsedUp => {
                Some((Sequence(self.first_request), Status::RetryExceeded))
            }
        };
        let mut reasons = self.rails.iter().filter_map(|rail| rail.pair.as_ref()?.fault());
        let last = reasons.next_back().cloned();
        let fault = match (cause, last) {
            (Cause::Refused(_), Some(last)) => last,
            (Cause::Refused(_), None) => TransportError::Refused(cause.to_string()),
            (Cause::NoAnswer, _) => TransportError::TimedOut(cause.to_string()),
            (_, Some(last)) => {
                TransportError::PeerGone(format!("{cause}, the last one so: {last}"))
            }
            (_, None) => TransportError::PeerGone(cause.to_string()),
        };
        self.fault.get_or_insert(fault);
        self.finish(culprit);
    }

    /// Goes to the error state. Rails that are in theirs already may still have to say why. What is
    /// outstanding is given back when no device has anything of it any more.
    pub(super) fn finish(&mut self, culprit: Option<(Sequence, Status)>) {
        if self.state == State::Error {
            return;
        }
        self.state = State::Error;
        self.dismiss_shadow();
        for rail in &mut self.rails {
            rail.forget_waiting();
            if let Some(pair) = &mut rail.pair
                && pair.state() != State::Error
            {
                pair.fail();
            }
        }
        self.parting = Some(Parting { culprit });
        self.part();
    }

    /// Gives back what is posted after the end, behind what was posted before.
    pub(super) fn give_back(&mut self, request: WorkRequest) {
        match self.parting {
            Some(_) => self.requests.push_back(request),
            None => self.ready.push(Completion::of(&request, Status::Flushed)),
        }
    }

    /// The same for a receive.
    pub(super) fn give_back_receive(&mut self, request: ReceiveRequest) {
        match self.parting {
            Some(_) => self.receives.push_back(request),
            None => self.ready.push(Completion::flushed_receive(request.id)),
        }
    }

    /// Gives back what is outstanding, once the devices have; tells whether that has happened now.
    pub(super) fn part(&mut self) -> bool {
        if self.parting.is_none() || !self.rails.iter().all(RailEnd::is_drained) {
            return false;
        }
        let Some(Parting { culprit }) = self.parting.take() else { return false };
        for (index, request) in self.requests.drain(..).enumerate() {
            let number = self.first_request + index as u64;
            let status = match culprit {
                Some((sequence, status)) if sequence.0 == number => status,
                Some(_) | None => Status::Flushed,
            };
            self.ready.push(Completion::of(&request, status));
        }
        self.ready
            .extend(self.receives.drain(..).map(|receive| Completion::flushed_receive(receive.id)));
        true
    }
}

/// It has ended, and the devices have not given everything back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parting {
    /// The request that is to blame, and what it is told.
    culprit: Option<(Sequence, Status)>,
}

//! Clients that contend for one word, each cut at any of its primitive operations.

use proptest::prelude::*;

use super::*;

const CLIENTS: usize = 3;

/// The memory of the peer: one word, and a record for each client.
#[derive(Debug, Default)]
struct Memory {
    word: u64,
    /// Value and status.
    records: [(u64, u64); CLIENTS],
}

/// What a step is made of.
#[derive(Clone, Copy, Debug)]
enum Primitive {
    Word { expected: u64, new: u64 },
    Announce { client: usize, value: u64, token: u64 },
    Status { client: usize, token: u64 },
    Record { client: usize },
}

fn primitives(step: Step, own: usize) -> Vec<Primitive> {
    match step {
        Step::Look => vec![Primitive::Word { expected: 0, new: 0 }],
        Step::Try { expected, token, value } => vec![
            Primitive::Announce { client: own, value, token },
            Primitive::Word { expected, new: token },
        ],
        Step::ReadRecord { client } => vec![Primitive::Record { client: client as usize }],
        Step::Settle { client, token, value } => vec![
            Primitive::Status { client: client as usize, token },
            Primitive::Word { expected: token, new: value },
        ],
    }
}

impl Memory {
    fn execute(&mut self, primitive: Primitive) -> Answer {
        match primitive {
            Primitive::Word { expected, new } => {
                let old = self.word;
                if old == expected {
                    self.word = new;
                }
                Answer::Word(old)
            }
            Primitive::Announce { client, value, token } => {
                self.records[client] = (value, token);
                Answer::Settled
            }
            Primitive::Status { client, token } => {
                let status = &mut self.records[client].1;
                if *status == token {
                    *status |= DONE;
                }
                Answer::Settled
            }
            Primitive::Record { client } => {
                let (value, status) = self.records[client];
                Answer::Record { value, status }
            }
        }
    }
}

/// One client, which runs its requests one after the other.
struct Client {
    number: usize,
    requests: Vec<Request>,
    current: Option<Atomic>,
    left: Vec<Primitive>,
    is_settling: bool,
    attempts: u64,
    results: Vec<(Request, u64)>,
    recovered: usize,
}

impl Client {
    fn new(number: usize, requests: Vec<Request>) -> Self {
        Self {
            number,
            requests,
            current: None,
            left: Vec::new(),
            is_settling: false,
            attempts: 0,
            results: Vec::new(),
            recovered: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.requests.is_empty() && self.current.is_none()
    }

    fn follow(&mut self, next: Next) {
        match next {
            Next::Step(step) => {
                self.is_settling = matches!(step, Step::Settle { .. });
                self.left = primitives(step, self.number);
            }
            Next::Done(word) => {
                let atomic = self.current.take().unwrap();
                self.recovered += usize::from(atomic.was_recovered);
                self.results.push((atomic.request, word));
            }
            Next::Impossible => panic!("no value of the test looks like a token"),
        }
    }

    /// Executes one primitive. When `is_cut`, its answer is lost and so is what would follow.
    fn advance(&mut self, memory: &mut Memory, is_cut: bool) {
        let Some(mut atomic) = self.current.take() else {
            let Some(request) = self.requests.pop() else { return };
            let client = self.number as u64;
            let (atomic, first) = Atomic::start(Sequence(0), request, client, &mut self.attempts);
            self.current = Some(atomic);
            return self.follow(first);
        };
        let mut answer = memory.execute(self.left.remove(0));
        let next = if is_cut {
            atomic.recover(&mut self.attempts)
        } else if self.left.is_empty() {
            answer = if self.is_settling { Answer::Settled } else { answer };
            atomic.answered(answer, &mut self.attempts)
        } else {
            self.current = Some(atomic);
            return;
        };
        self.current = Some(atomic);
        self.follow(next);
    }
}

/// Whether some order of all operations, keeping that of each client, gives these results.
fn is_explained(word: u64, last: u64, clients: &[&[(Request, u64)]]) -> bool {
    if clients.iter().all(|results| results.is_empty()) {
        return word == last;
    }
    (0..clients.len()).any(|index| {
        let Some((&(request, result), rest)) = clients[index].split_first() else { return false };
        let after = match request {
            Request::CompareAndSwap { expected, new } if expected == word => new,
            Request::CompareAndSwap { .. } => word,
            Request::FetchAdd { addend } => word.wrapping_add(addend),
        };
        let mut others = clients.to_vec();
        others[index] = rest;
        result == word && is_explained(after, last, &others)
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (0u64..3, 0u64..3).prop_map(|(expected, new)| Request::CompareAndSwap { expected, new }),
        (1u64..3).prop_map(|addend| Request::FetchAdd { addend }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn every_result_is_that_of_some_order(
        requests in prop::collection::vec(prop::collection::vec(any_request(), 0..4), CLIENTS),
        schedule in prop::collection::vec((0..CLIENTS, prop::bool::weighted(0.25)), 0..120),
    ) {
        let mut memory = Memory::default();
        let mut clients: Vec<Client> = requests
            .into_iter()
            .enumerate()
            .map(|(number, requests)| Client::new(number, requests))
            .collect();
        for (index, is_cut) in schedule {
            clients[index].advance(&mut memory, is_cut);
        }
        let mut steps = 0;
        while let Some(client) = clients.iter_mut().find(|client| !client.is_done()) {
            client.advance(&mut memory, false);
            steps += 1;
            prop_assert!(steps < 1000, "a client alone does not finish");
        }
        prop_assert!(!is_token(memory.word));
        let results: Vec<&[(Request, u64)]> =
            clients.iter().map(|client| client.results.as_slice()).collect();
        prop_assert!(is_explained(0, memory.word, &results), "{results:?} and {}", memory.word);
    }
}

#[test]
fn a_swap_whose_answer_is_lost_is_recovered_with_its_result() {
    let mut memory = Memory { word: 5, ..Memory::default() };
    let request = Request::CompareAndSwap { expected: 5, new: 6 };
    let mut client = Client::new(1, vec![request]);
    client.advance(&mut memory, false);
    client.advance(&mut memory, false);
    client.advance(&mut memory, true);
    assert!(is_token(memory.word));
    let mut helper = Client::new(2, vec![Request::FetchAdd { addend: 10 }]);
    while !helper.is_done() {
        helper.advance(&mut memory, false);
    }
    assert_eq!((memory.word, helper.results[0].1), (16, 6));
    while !client.is_done() {
        client.advance(&mut memory, false);
    }
    assert_eq!((client.results[0], client.recovered), ((request, 5), 1));
    assert_eq!(memory.word, 16);
}

#[test]
fn what_looks_like_a_token_is_refused() {
    let impostor = TAG << TAG_SHIFT | 1;
    let mut attempts = 0;
    for (expected, new) in [(impostor, 0), (0, impostor)] {
        let request = Request::CompareAndSwap { expected, new };
        assert_eq!(Atomic::start(Sequence(0), request, 0, &mut attempts).1, Next::Impossible);
    }
    let (mut atomic, _) =
        Atomic::start(Sequence(0), Request::FetchAdd { addend: 1 }, 0, &mut attempts);
    let read = Next::Step(Step::ReadRecord { client: 0 });
    assert_eq!(atomic.answered(Answer::Word(impostor), &mut attempts), read);
    let empty = Answer::Record { value: 0, status: 0 };
    assert_eq!(atomic.answered(empty, &mut attempts), Next::Step(Step::Look));
    assert_eq!(atomic.answered(Answer::Word(impostor), &mut attempts), Next::Impossible);
    let request = Request::CompareAndSwap { expected: 0, new: 1 };
    assert_eq!(
        Atomic::start(Sequence(0), request, 0, &mut MAX_ATTEMPTS.clone()).1,
        Next::Impossible
    );
}

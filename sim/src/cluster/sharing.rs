//! Max-min fair rates, by progressive filling.
//!
//! All flows become faster together until a resource is full; the flows through it stay at that rate, the others
//! go on, until every flow is held by a full resource. A flow may use a resource for a share of its bytes only, as
//! one that is divided among rails does, or several times.

/// A capacity that flows compete for: one direction of a NIC, of a GPU's NVLink, of a PCIe slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(pub u32);

impl Resource {
    /// As an index into tables of resources.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a flow needs of a resource: `share` bytes of it for every byte of the flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    /// Of what.
    pub resource: Resource,
    /// How much.
    pub share: f64,
}

/// Resources whose levels differ by less than this, relative to the lower one, are full at once.
const SAME_LEVEL: f64 = 1e-12;

/// Works out rates, again and again, in memory of its own.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// By resource: what is left of it, and the shares of the flows that still become faster.
    left: Vec<f64>,
    weights: Vec<f64>,
    /// By resource: where its flows begin in `flows`, and how many there are so far.
    begins: Vec<u32>,
    counts: Vec<u32>,
    flows: Vec<u32>,
    /// Those that any flow uses, and those of them that can still fill up.
    touched: Vec<Resource>,
    open: Vec<Resource>,
    full: Vec<Resource>,
}

impl Sharing {
    /// The rate of every flow, in the order of `flows`, where resource `r` has `capacities[r]`. A flow that uses
    /// nothing is infinitely fast.
    pub fn rates(&mut self, capacities: &[f64], flows: &[&[Use]], rates: &mut Vec<f64>) {
        rates.clear();
        rates.resize(flows.len(), f64::INFINITY);
        self.prepare(capacities, flows);
        let mut held = vec![false; flows.len()];
        while let Some(level) = self.next_level() {
            while let Some(resource) = self.full.pop() {
                let begin = self.begins[resource.index()] as usize;
                let end = begin + self.counts[resource.index()] as usize;
                for place in begin..end {
                    let flow = self.flows[place] as usize;
                    if !std::mem::replace(&mut held[flow], true) {
                        rates[flow] = level;
                        self.hold(flows[flow], level);
                    }
                }
                self.weights[resource.index()] = 0.0;
            }
            let weights = &self.weights;
            self.open.retain(|resource| weights[resource.index()] > 0.0);
        }
    }

    /// Writes down which flows use what.
    fn prepare(&mut self, capacities: &[f64], flows: &[&[Use]]) {
        for table in [&mut self.left, &mut self.weights] {
            table.resize(capacities.len(), 0.0);
        }
        for table in [&mut self.begins, &mut self.counts] {
            table.resize(capacities.len(), 0);
        }
        for resource in self.touched.drain(..) {
            self.counts[resource.index()] = 0;
            self.weights[resource.index()] = 0.0;
        }
        for Use { resource, share } in flows.iter().flat_map(|uses| uses.iter()) {
            let index = resource.index();
            if self.counts[index] == 0 {
                self.touched.push(*resource);
                self.left[index] = capacities[index];
            }
            self.counts[index] += 1;
            self.weights[index] += share;
        }
        let mut begin = 0;
        for resource in &self.touched {
            self.begins[resource.index()] = begin;
            begin += std::mem::take(&mut self.counts[resource.index()]);
        }
        self.flows.clear();
        self.flows.resize(begin as usize, 0);
        for (flow, uses) in (0..).zip(flows) {
            for Use { resource, .. } in *uses {
                let count = &mut self.counts[resource.index()];
                self.flows[(self.begins[resource.index()] + *count) as usize] = flow;
                *count += 1;
            }
        }
        self.open.clone_from(&self.touched);
    }

    /// The rate at which the next resources are full, which are then in `full`.
    fn next_level(&mut self) -> Option<f64> {
        let level = |resource: &Resource| {
            self.left[resource.index()].max(0.0) / self.weights[resource.index()]
        };
        let lowest = self.open.iter().map(level).min_by(f64::total_cmp)?;
        let limit = lowest * (1.0 + SAME_LEVEL);
        self.full.extend(self.open.iter().filter(|resource| level(resource) <= limit));
        Some(lowest)
    }

    /// A flow stays at this rate.
    fn hold(&mut self, uses: &[Use], rate: f64) {
        for Use { resource, share } in uses {
            self.left[resource.index()] -= rate * share;
            let weight = &mut self.weights[resource.index()];
            // What is left of a sum of shares after all of them were taken away is rounding.
            *weight = if *weight - share > SAME_LEVEL { *weight - share } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::random::Random;

    fn uses(list: &[(u32, f64)]) -> Vec<Use> {
        list.iter()
            .map(|(resource, share)| Use { resource: Resource(*resource), share: *share })
            .collect()
    }

    fn rates(capacities: &[f64], flows: &[Vec<Use>]) -> Vec<f64> {
        let flows: Vec<&[Use]> = flows.iter().map(Vec::as_slice).collect();
        let mut rates = Vec::new();
        Sharing::default().rates(capacities, &flows, &mut rates);
        rates
    }

    #[test]
    fn who_is_held_elsewhere_leaves_the_rest_to_others() {
        let flows = [uses(&[(0, 1.0)]), uses(&[(0, 1.0), (1, 1.0)]), uses(&[(1, 1.0)]), uses(&[])];
        assert_eq!(rates(&[10.0, 4.0], &flows), [8.0, 2.0, 2.0, f64::INFINITY]);
        assert_eq!(rates(&[10.0, 0.0], &flows)[..3], [10.0, 0.0, 0.0]);
    }

    #[test]
    fn shares_are_counted() {
        let flows = [uses(&[(0, 0.5), (1, 0.5)]), uses(&[(0, 2.0)])];
        assert_eq!(rates(&[10.0, 1.0], &flows), [2.0, 4.5]);
    }

    /// What defines max-min fairness: nothing is overloaded, and every flow goes through a full resource on which
    /// no other flow is faster.
    #[test]
    fn every_flow_is_held_where_nobody_is_faster() {
        let mut random = Random::new(7);
        for _ in 0..300 {
            let capacities: Vec<f64> = (0..6).map(|_| 1.0 + random.below(9) as f64).collect();
            let flow = |random: &mut Random| {
                let first = u32::try_from(random.below(6)).unwrap();
                let second = (first + 1 + u32::try_from(random.below(5)).unwrap()) % 6;
                uses(&[(first, 1.0), (second, 0.25 * (1 + random.below(4)) as f64)])
            };
            let flows: Vec<Vec<Use>> =
                (0..1 + random.below(9)).map(|_| flow(&mut random)).collect();
            let rates = rates(&capacities, &flows);
            let share = |flow: &[Use], resource| -> f64 {
                flow.iter().filter(|used| used.resource.index() == resource).map(|u| u.share).sum()
            };
            let load = |resource| -> f64 {
                flows.iter().zip(&rates).map(|(flow, rate)| rate * share(flow, resource)).sum()
            };
            for (flow, rate) in flows.iter().zip(&rates) {
                let holds = |resource: usize| {
                    let is_full = load(resource) > capacities[resource] * (1.0 - 1e-9);
                    let mut through =
                        flows.iter().zip(&rates).filter(|(f, _)| share(f, resource) > 0.0);
                    is_full && through.all(|(_, other)| *other <= rate * (1.0 + 1e-9))
                };
                assert!(
                    flow.iter().any(|used| holds(used.resource.index())),
                    "{flows:?} {rates:?}"
                );
            }
            assert!((0..6).all(|resource| load(resource) <= capacities[resource] * (1.0 + 1e-9)));
        }
    }
}

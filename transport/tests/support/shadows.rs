//! Shadows for both ends of virtual queue pairs of one process, over loopback.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ccl_transport::auth::JobKey;
use ccl_transport::verbs::soft::socket::Binding;
use ccl_transport::verbs::virtual_qp::{Shadow, Store, Switchboard, TcpConnector};
use ccl_transport::{TransportError, clock};

/// A store of this process.
pub(super) fn store() -> Arc<dyn Store> {
    let values = Arc::<Mutex<BTreeMap<String, Vec<u8>>>>::default();
    let inside = Arc::clone(&values);
    let put = move |key: &str, value: &[u8]| {
        inside.lock().unwrap().insert(key.to_owned(), value.to_owned());
        Ok(())
    };
    let get = move |key: &str, deadline: Instant| loop {
        if let Some(value) = values.lock().unwrap().get(key) {
            return Ok(value.clone());
        }
        if clock::now() >= deadline {
            return Err(TransportError::TimedOut(key.to_owned()));
        }
        clock::sleep(Duration::from_millis(1));
    };
    Arc::new((put, get))
}

/// Two processes that know each other's store: the near one dials, the far one accepts.
pub(super) struct Exchange {
    store: Arc<dyn Store>,
    key: JobKey,
    bindings: Vec<Binding>,
    pub(super) switchboard: Arc<Switchboard>,
}

impl Exchange {
    pub(super) fn new(rails: usize) -> Self {
        let address = "127.0.0.1".parse().unwrap();
        let bindings = vec![Binding { address, interface: None }; rails];
        let key = JobKey::from_passphrase("shadows");
        let switchboard = Arc::new(Switchboard::open(&bindings, key.clone()).unwrap());
        Self { store: store(), key, bindings, switchboard }
    }

    pub(super) fn dialling(&self, name: &str) -> TcpConnector {
        self.stranger(name, self.key.clone())
    }

    /// Somebody who dials with another key.
    pub(super) fn stranger(&self, name: &str, key: JobKey) -> TcpConnector {
        TcpConnector::dialling(name, Arc::clone(&self.store), self.bindings.clone(), key)
    }

    pub(super) fn accepting(&self, name: &str) -> TcpConnector {
        TcpConnector::accepting(name, Arc::clone(&self.store), Arc::clone(&self.switchboard))
    }

    pub(super) fn near(&self, name: &str) -> Shadow {
        Shadow::new(self.dialling(name))
    }

    pub(super) fn far(&self, name: &str) -> Shadow {
        Shadow::new(self.accepting(name))
    }
}

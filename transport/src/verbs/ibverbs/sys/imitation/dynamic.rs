//! The functions of libmlx5.

use std::ptr::null_mut;

use super::super::abi;
use super::super::abi::mlx5::{ExtendedInitAttributes, Mlx5Attributes};
use super::super::library::Mlx5Functions;
use super::pairs::{Parts, make_pair};
use super::verbs::none;
use super::world::Kind;
use super::{Make, behind, calls};

pub(super) const FUNCTIONS: Mlx5Functions = Mlx5Functions {
    mlx5dv_is_supported: is_supported,
    mlx5dv_create_qp: create_qp,
    mlx5dv_qp_ex_from_ibv_qp_ex: calls::of_mlx5,
};

unsafe extern "C" fn is_supported(device: *mut abi::Device) -> bool {
    behind(device).0.0.make == Make::Mlx5
}

unsafe extern "C" fn create_qp(
    _: *mut abi::Context,
    attributes: *mut ExtendedInitAttributes,
    mlx5: *mut Mlx5Attributes,
) -> *mut abi::QueuePair {
    // SAFETY: the caller has filled them in.
    let attributes = unsafe { &*attributes };
    // SAFETY: as above.
    let mlx5 = unsafe { &*mlx5 };
    if attributes.comp_mask & abi::IBV_QP_INIT_ATTR_PD == 0 {
        return none(libc::EINVAL);
    }
    let is_dynamic = mlx5.comp_mask & u64::from(abi::MLX5DV_QP_INIT_ATTR_MASK_DC) != 0;
    let is_driver = attributes.qp_type == abi::IBV_QPT_DRIVER;
    let builds = attributes.comp_mask & abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let kind = match mlx5.dc_init_attr.dc_type {
        _ if is_dynamic != is_driver => return none(libc::EINVAL),
        _ if !is_dynamic => Kind::Reliable,
        abi::MLX5DV_DCTYPE_DCT if builds || attributes.srq.is_null() => return none(libc::EINVAL),
        abi::MLX5DV_DCTYPE_DCT => Kind::Target(mlx5.dc_init_attr.dct_access_key),
        abi::MLX5DV_DCTYPE_DCI if builds => Kind::Initiator,
        _ => return none(libc::EINVAL),
    };
    let (network, _) = behind(attributes.pd);
    let atomics = abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    if attributes.send_ops_flags & u64::from(atomics) != 0 && !network.world().has_atomics {
        return none(libc::EOPNOTSUPP);
    }
    if matches!(kind, Kind::Target(_)) && !network.world().makes_targets {
        return none(libc::EOPNOTSUPP);
    }
    let flags = mlx5.comp_mask & u64::from(abi::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS);
    let is_off =
        flags != 0 && mlx5.create_flags & abi::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE != 0;
    make_pair(&Parts {
        kind,
        domain: attributes.pd,
        queues: [attributes.send_cq, attributes.recv_cq],
        shared: if kind == Kind::Initiator { null_mut() } else { attributes.srq },
        cap: attributes.cap,
        scatters: !is_off,
    })
}

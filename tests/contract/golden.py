"""One example of every tagged message beside its exact bytes, by which other versions of this project know it.

A change here is a change of the wire: a new field with a default keeps old bytes readable, anything else needs a new
`VERSION`.
"""

from paceline.contracts import messages as m
from paceline.contracts.frames import Logprobs

WORK = m.Work(
    request_id="0f" * 16,
    attempt=2,
    gateway="gw1",
    tenant="acme",
    salt=b"\x01\x02\x03",
    prompt=[1, 2, 3],
    sampling=m.Sampling(max_tokens=8, temperature=0.0, logit_bias={5: -1.5}, stop_token_ids=(2,)),
    deadline=1767225600.5,
)
BATCH_WORK = m.Work(
    request_id="0f" * 16,
    attempt=1,
    gateway="gw1",
    tenant="acme",
    salt=b"\x01\x02\x03",
    prompt=[1, 2],
    sampling=m.Sampling(max_tokens=8, grammar='{"grammars":[]}', logprobs=0, prompt_logprobs=3),
    deadline=1767225600.5,
    output=[4],
    low_priority=True,
)
BATCH_WORK_JSON = (
    b'{"request_id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","attempt":1,"gateway":"gw1","tenant":"acme","salt":"AQID",'
    b'"prompt":[1,2],"sampling":{"max_tokens":8,"grammar":"{\\"grammars\\":[]}","logprobs":0,"prompt_logprobs":3},'
    b'"deadline":1767225600.5,"output":[4],"low_priority":true}'
)
WORK_JSON = (
    b'{"request_id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","attempt":2,"gateway":"gw1","tenant":"acme","salt":"AQID",'
    b'"prompt":[1,2,3],"sampling":{"max_tokens":8,"temperature":0.0,"logit_bias":{"5":-1.5},"stop_token_ids":[2]},'
    b'"deadline":1767225600.5}'
)
SHM = m.ShmTransfer(socket="w.sock", incarnation="5eed")
SHM_JSON = b'{"type":"shm","socket":"w.sock","incarnation":"5eed"}'
PAGES = [m.PageRef(7, 2**63 + 1), m.PageRef(0, 3)]
PAGES_JSON = b"[[7,9223372036854775809],[0,3]]"
FEATURES = m.ShmFeatures(transfer=SHM, offset=4096, tokens=2, width=64, dtype="bfloat16")
FEATURES_JSON = (
    b'{"type":"shm_features","transfer":'
    + SHM_JSON
    + b',"offset":4096,"tokens":2,"width":64,"dtype":"bfloat16"}'
)

GOLDEN: list[tuple[m.Message, bytes]] = [
    (SHM, SHM_JSON),
    (m.LocalPrefill(), b'{"type":"local"}'),
    (
        m.RemotePrefill(worker="p1", incarnation="5eed", transfer_id="aa"),
        b'{"type":"remote","worker":"p1","incarnation":"5eed","transfer_id":"aa"}',
    ),
    (FEATURES, FEATURES_JSON),
    (
        m.Prefill(work=WORK, transfer_id="aa"),
        b'{"type":"prefill","work":' + WORK_JSON + b',"transfer_id":"aa","v":2}',
    ),
    (
        m.Generate(work=BATCH_WORK, source=m.LocalPrefill()),
        b'{"type":"generate","work":' + BATCH_WORK_JSON + b',"source":{"type":"local"},"draft":true,"v":2}',
    ),
    (m.Cancel(request_id="r", attempt=3), b'{"type":"cancel","request_id":"r","attempt":3,"v":2}'),
    (
        m.Resend(request_id="r", attempt=3, index=9),
        b'{"type":"resend","request_id":"r","attempt":3,"index":9,"v":2}',
    ),
    (m.Confirm(request_id="r", attempt=3), b'{"type":"confirm","request_id":"r","attempt":3,"v":2}'),
    (m.Drain(), b'{"type":"drain","v":2}'),
    (m.Ack(), b'{"type":"ack","v":2}'),
    (
        m.Refused(code="busy", message="full", retry_after_s=0.5),
        b'{"type":"refused","code":"busy","message":"full","retry_after_s":0.5,"v":2}',
    ),
    (
        m.Started(
            request_id="r",
            attempt=1,
            worker="p1",
            cached=m.CachedTokens(host=128),
            timings=m.Timings(queue=0.25, compute=1.5),
            prompt_logprobs=[Logprobs(-0.5, ((7, -0.25), (3, -0.5)))],
        ),
        b'{"type":"started","request_id":"r","attempt":1,"worker":"p1","cached":{"host":128},'
        b'"timings":{"queue":0.25,"compute":1.5},"prompt_logprobs":[[-0.5,[[7,-0.25],[3,-0.5]]]],"v":2}',
    ),
    (
        m.Done(
            request_id="r", attempt=1, worker="d1", finish_reason="stop", tokens=5, steps=4, handoff=0.125
        ),
        b'{"type":"done","request_id":"r","attempt":1,"worker":"d1","finish_reason":"stop","tokens":5,"drafted":0,'
        b'"accepted":0,"steps":4,"compute":0.0,"handoff":0.125,"v":2}',
    ),
    (
        m.Failed(request_id="r", attempt=1, worker="d1", code="integrity", message="page 7"),
        b'{"type":"failed","request_id":"r","attempt":1,"worker":"d1","code":"integrity","message":"page 7","v":2}',
    ),
    (
        m.Admit(
            transfer_id="aa",
            worker="d1",
            resident=1,
            pages=PAGES,
            kv=m.KvForm(profile_id=b"\xff", dtype="fp8_e4m3", scales=[0.5]),
            transfer=SHM,
        ),
        b'{"type":"admit","transfer_id":"aa","worker":"d1","resident":1,"pages":'
        + PAGES_JSON
        + b',"kv":{"profile_id":"/w==","dtype":"fp8_e4m3","scales":[0.5]},"transfer":'
        + SHM_JSON
        + b',"v":2}',
    ),
    (
        m.Commit(
            transfer_id="aa",
            tokens=130,
            first_token=42,
            sampled_at=1767225600.5,
            pages=PAGES,
            digests=[b"\x00", b"\x01"],
            finish_reason="length",
            features=FEATURES,
        ),
        b'{"type":"commit","transfer_id":"aa","tokens":130,"first_token":42,"sampled_at":1767225600.5,"pages":'
        + PAGES_JSON
        + b',"digests":["AA==","AQ=="],"finish_reason":"length","features":'
        + FEATURES_JSON
        + b',"v":2}',
    ),
    (
        m.Withdraw(transfer_id="aa", code="cancelled", message="gone"),
        b'{"type":"withdraw","transfer_id":"aa","code":"cancelled","message":"gone","v":2}',
    ),
    (
        m.Lookup(worker="p1", keys=[b"\x00\x01"]),
        b'{"type":"lookup","worker":"p1","keys":["AAE="],"sparse":false,"v":2}',
    ),
    (
        m.Lease(lease_id="l1", pages=PAGES, digests=[b"\x00"], transfer=SHM, ttl_s=30.0),
        b'{"type":"lease","lease_id":"l1","pages":'
        + PAGES_JSON
        + b',"digests":["AA=="],"transfer":'
        + SHM_JSON
        + b',"ttl_s":30.0,"found":[],"v":2}',
    ),
    (
        m.Reserve(worker="p1", keys=[b"\x00"], page_bytes=1024),
        b'{"type":"reserve","worker":"p1","keys":["AA=="],"page_bytes":1024,"v":2}',
    ),
    (
        m.Reserved(lease_id="l1", keys=[b"\x00"], pages=PAGES, transfer=SHM),
        b'{"type":"reserved","lease_id":"l1","keys":["AA=="],"pages":'
        + PAGES_JSON
        + b',"transfer":'
        + SHM_JSON
        + b',"v":2}',
    ),
    (
        m.Publish(lease_id="l1", digests=[b"\x00"]),
        b'{"type":"publish","lease_id":"l1","digests":["AA=="],"v":2}',
    ),
    (m.Release(lease_id="l1"), b'{"type":"release","lease_id":"l1","damaged":[],"v":2}'),
    (
        m.DraftOpen(worker="d1", request_id="r", epoch=1, tenant="acme", tokens=[1, 2]),
        b'{"type":"draft_open","worker":"d1","request_id":"r","epoch":1,"tenant":"acme","tokens":[1,2],"v":2}',
    ),
    (
        m.Propose(
            worker="d1",
            deadline=1767225600.5,
            max_tokens=4,
            commits=[m.DraftCommit(request_id="r", epoch=1, base=7, tokens=[9])],
        ),
        b'{"type":"propose","worker":"d1","deadline":1767225600.5,"max_tokens":4,'
        b'"commits":[{"request_id":"r","epoch":1,"base":7,"tokens":[9]}],"v":2}',
    ),
    (m.TokenTree(tokens=[5, 6], parents=[-1, 0]), b'{"type":"tree","tokens":[5,6],"parents":[-1,0]}'),
    (m.NoDraft(), b'{"type":"none"}'),
    (
        m.Proposals(
            drafts=[
                m.Drafted(request_id="r", epoch=1, base=8, proposal=m.TokenTree(tokens=[5], parents=[-1])),
                m.Drafted(request_id="s", epoch=1, base=3, proposal=m.NoDraft()),
            ]
        ),
        b'{"type":"proposals","drafts":[{"request_id":"r","epoch":1,"base":8,"proposal":'
        b'{"type":"tree","tokens":[5],"parents":[-1]}},{"request_id":"s","epoch":1,"base":3,"proposal":'
        b'{"type":"none"}}],"v":2}',
    ),
    (
        m.DraftClose(worker="d1", request_id="r", epoch=1),
        b'{"type":"draft_close","worker":"d1","request_id":"r","epoch":1,"v":2}',
    ),
    (
        m.Beacon(
            role="decode",
            worker="d1",
            incarnation="5eed",
            host="node1",
            pid=4711,
            state="ready",
            started=1767225600.5,
            load=m.Load(running=1, pages_used=3, counters={"hits": 2}),
            model=m.ModelInfo(
                name="tiny", context=64, fingerprint=b"p", kv_dtype="float32", page_bytes=4096, engine="fake"
            ),
        ),
        b'{"type":"beacon","role":"decode","worker":"d1","incarnation":"5eed","host":"node1","pid":4711,'
        b'"state":"ready","started":1767225600.5,"load":{"running":1,"pages_used":3,"counters":{"hits":2}},'
        b'"model":{"name":"tiny","context":64,"fingerprint":"cA==","kv_dtype":"float32","page_bytes":4096,"engine":"fake"},"v":2}',
    ),
]

"""Makes `format-5.db`, a gallery half-way through an upgrade, by the program `rehang` of its time: `python make.py PROGRAM` in an empty folder."""
import json, sqlite3, subprocess, sys

import numpy as np

B=sys.argv[1]
rng=np.random.default_rng(5); n=60
base=rng.normal(size=(n,3)).astype('f4')
np.save('old.npy',base); new=np.concatenate([base@rng.normal(size=(3,3)).astype('f4'),np.sin(base[:,:1])],1).astype('f4')
ids=[f'item-{i:04d}' for i in range(n)]
keep=[i for i in range(n) if i!=9]       # the encoder has no vector of item 9
np.save('new.npy',new[keep]); open('ids.txt','w').write('\n'.join(ids[i] for i in keep)+'\n')
open('items.jsonl','w').write(''.join(json.dumps({'id':i,'source':i,'label':f'class {k%4}','payload':{'k':k}})+'\n' if k!=7 else json.dumps({'id':i})+'\n' for k,i in enumerate(ids)))
def run(*a):
    p=subprocess.run([B,*a],capture_output=True,text=True); print('$',*a,'->',p.returncode); 
    if p.returncode>1: print(p.stdout,p.stderr); sys.exit(1)
run('gallery','import','--gallery','format-5.db','--space','old-model','--distance','l2','--vectors','old.npy','--items','items.jsonl')
run('init','--gallery','format-5.db','--new-name','new-model','--new-dimension','4')
open('rehang.toml','a').write('\n[encoder]\nkind = "table"\nvectors = "new.npy"\nids = "ids.txt"\n')
run('upgrade','pairs','--items','25','--worth','0')
run('upgrade','fit','--method','ridge')
run('upgrade','start'); run('upgrade','switch','--anyway'); run('upgrade','run','--budget','12','--no-refit')
c=sqlite3.connect('format-5.db'); c.execute("PRAGMA journal_mode=WAL")
c.execute("UPDATE item SET source='other' WHERE id='item-0001'"); c.execute("INSERT INTO item (id, source) VALUES ('item-0060','late')"); c.commit()
print(c.execute('select provenance, count(*) from vector_2 group by 1').fetchall(), c.execute('select count(*) from item').fetchall())
print([r[0] for r in c.execute("select name from sqlite_master where type='table'")])
c.execute('PRAGMA wal_checkpoint(TRUNCATE)'); c.execute('VACUUM'); c.execute('PRAGMA wal_checkpoint(TRUNCATE)'); c.close()

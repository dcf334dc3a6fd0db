BEGIN TRANSACTION;
CREATE TABLE caw_api_keys (
	id VARCHAR(64) NOT NULL, 
	tenant VARCHAR(64) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	may_opt_out BOOLEAN NOT NULL, 
	created DATETIME NOT NULL, 
	not_after DATETIME, 
	revoked DATETIME, 
	PRIMARY KEY (id), 
	FOREIGN KEY(tenant) REFERENCES caw_tenants (id)
);
INSERT INTO "caw_api_keys" VALUES('6bcd18476fe5','acme','20a8f0836eb3ac2094c955b530dfa01bc2b96fa4febd119944fa5af2822d4449',0,'2026-12-01 12:00:00.000000',NULL,NULL);
CREATE TABLE caw_facts (
	name VARCHAR(64) NOT NULL, 
	value TEXT, 
	PRIMARY KEY (name)
);
INSERT INTO "caw_facts" VALUES('schema','1');
INSERT INTO "caw_facts" VALUES('chain','6cd27d3b6c851b6ef6e614024e07d895');
INSERT INTO "caw_facts" VALUES('changes','2');
INSERT INTO "caw_facts" VALUES('checked','');
CREATE TABLE caw_marking_keys (
	id VARCHAR(64) NOT NULL, 
	tenant VARCHAR(64) NOT NULL, 
	secret TEXT NOT NULL, 
	public BOOLEAN NOT NULL, 
	created DATETIME NOT NULL, 
	not_before DATETIME NOT NULL, 
	not_after DATETIME, 
	revoked DATETIME, 
	PRIMARY KEY (id), 
	FOREIGN KEY(tenant) REFERENCES caw_tenants (id)
);
INSERT INTO "caw_marking_keys" VALUES('17ab3ae2','acme','1.fed6d105.9OjpMmDTq58Ot/rheUPM/gj7tM65wS6OPgEbyVZtlF3mbpjv',1,'2026-12-01 12:00:00.000000','2026-12-01 12:00:00.000000',NULL,NULL);
INSERT INTO "caw_marking_keys" VALUES('75f591ca','globex','1.fed6d105.aeJALIvFc5DkN8SlJkBAR3Fv72GkMrDNJHWFCykQPsx/oAx2',0,'2026-12-01 12:00:00.000000','2026-12-01 12:00:00.000000',NULL,NULL);
CREATE TABLE caw_receipts (
	sequence INTEGER NOT NULL, 
	kind VARCHAR(64) NOT NULL, 
	receipt VARCHAR(64) NOT NULL, 
	text VARCHAR(64), 
	content TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	signing_key VARCHAR(64) NOT NULL, 
	signature VARCHAR(128) NOT NULL, 
	PRIMARY KEY (sequence), 
	UNIQUE (receipt, kind)
);
INSERT INTO "caw_receipts" VALUES(1,'key','8eb5240a2f9a5137',NULL,'{"chain":"6cd27d3b6c851b6ef6e614024e07d895","key":"8eb5240a2f9a5137","kind":"key","previous":"","receipt":{"id":"8eb5240a2f9a5137","public":"33d03a0cf7056930b470d88024755acc570cd11b7d4473a485ae57e9264924e7"},"sequence":1}','fcd8232a117e904f509d57168e2ac5298b7e7e61a561f67164723424d98b741c','8eb5240a2f9a5137','AblplC1/d0LmOPd3vs2CjhJiZ6DLjf+XdP8SOhW9LAXjHpF7ZtpJhjN3/5XN93e3AhdAxMwIt1fOVoKCYbQ0Bg==');
INSERT INTO "caw_receipts" VALUES(2,'begun','one',NULL,'{"chain":"6cd27d3b6c851b6ef6e614024e07d895","key":"8eb5240a2f9a5137","kind":"begun","previous":"fcd8232a117e904f509d57168e2ac5298b7e7e61a561f67164723424d98b741c","receipt":{"choice":0,"found_at":null,"id":"one","key_id":"x","model":"m","policy":"p","request":"chatcmpl-1","tenant":"acme","time":1.5,"unmarked":"","watermark":"kgw"},"sequence":2}','2f261f803efb3d9b177d105449b33f8abb28cb598380a8cc62c89c85164fabf2','8eb5240a2f9a5137','7j0YnZM8PnIALv6TD8meNciu4PrbF0XHCDtgSRks5ZYfqpzxxEdvo7kq7yapUG0hA8bIcScjS9oj9TkKCGeDCg==');
INSERT INTO "caw_receipts" VALUES(3,'closed','one','abababababababababababababababababababababababababababababababab','{"chain":"6cd27d3b6c851b6ef6e614024e07d895","key":"8eb5240a2f9a5137","kind":"closed","previous":"2f261f803efb3d9b177d105449b33f8abb28cb598380a8cc62c89c85164fabf2","receipt":{"attempts":1,"digest":"abababababababababababababababababababababababababababababababab","ending":"complete","finish_reason":"stop","found":true,"id":"one","p_value":1.5e-07,"reason":"","time":2.5,"tokens":200},"sequence":3}','b38dcb1f5efd1c25d2f5f68ab82aa3b62e2f8cb25e92e81e8f344f0f64f31e00','8eb5240a2f9a5137','gSgtsRqKh01rwopTQJ7zQ3mTYiIWsUbSO1fKKlYM155js0l+qf93nkjgjWgAMRQYpdhJezRGW9JpgRIEuu85AA==');
CREATE TABLE caw_signing_keys (
	id VARCHAR(64) NOT NULL, 
	secret TEXT NOT NULL, 
	created DATETIME NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "caw_signing_keys" VALUES('8eb5240a2f9a5137','1.fed6d105.2FsOL5urV7f6xktKNPRgohDCWRuvH7q6OUAYBxeXQi1klgIiJFgaKCXUEqxlTGRwCnwOiaF4Wt0uyVQr','2026-12-01 12:00:00.000000');
CREATE TABLE caw_tenants (
	id VARCHAR(64) NOT NULL, 
	rules JSON, 
	created DATETIME NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "caw_tenants" VALUES('acme',NULL,'2026-12-01 12:00:00.000000');
INSERT INTO "caw_tenants" VALUES('globex',NULL,'2026-12-01 12:00:00.000000');
CREATE INDEX ix_caw_receipts_text ON caw_receipts (text);
CREATE INDEX ix_caw_marking_keys_tenant ON caw_marking_keys (tenant);
CREATE INDEX ix_caw_api_keys_tenant ON caw_api_keys (tenant);
COMMIT;
